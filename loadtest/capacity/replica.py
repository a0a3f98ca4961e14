"""One replica, simulated: so many rows that share its speed, a line before them, and a limit to the wait."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    rows: int
    alone: float  # seconds that a call of average work takes when nobody else is there
    crowding: float  # how much longer for each other row in use
    spread: float  # of the work of calls: the sigma of a log-normal distribution with mean 1
    longest_wait: float = 2.0  # seconds; whoever would wait longer is refused

    def slowness(self, in_use: int) -> float:
        """Seconds for one unit of work in each of the rows in use."""
        return self.alone * (1 + self.crowding * (in_use - 1))

    @property
    def most(self) -> float:
        """Calls a second with all rows in use."""
        return self.rows / self.slowness(self.rows)

    def work(self, normal: float) -> float:
        """Of a call, from a number drawn from the normal distribution."""
        return math.exp(self.spread * normal - self.spread**2 / 2)


@dataclass(frozen=True, slots=True)
class Ended:
    arrived: float
    at: float

    @property
    def seconds(self) -> float:
        return self.at - self.arrived


class Replica:
    def __init__(self, pace: Pace, now: float = 0.0) -> None:
        self.pace, self.since = pace, now
        self.row_seconds = 0.0  # that were in use
        self._now, self._done = now, 0.0  # units of work that each row has had
        self._running: list[tuple[float, float]] = []  # when it ends, in units of work; when it arrived
        self._line: deque[tuple[float, float]] = deque()  # arrival, work

    @property
    def ongoing(self) -> int:
        return len(self._running) + len(self._line)

    @property
    def share(self) -> float:
        return len(self._running) / self.pace.rows

    @property
    def wait(self) -> float:
        """Seconds that whoever came now would wait, about."""
        return len(self._line) / self.pace.most

    def arrive(self, now: float, work: float) -> bool:
        """Whether it is taken; `until(now)` comes first."""
        if len(self._running) < self.pace.rows:
            heapq.heappush(self._running, (self._done + work, now))
        elif self.wait <= self.pace.longest_wait:
            self._line.append((now, work))
        else:
            return False
        return True

    def until(self, now: float) -> list[Ended]:
        """Those who are done by then."""
        ended = []
        while self._running:
            slowness = self.pace.slowness(len(self._running))
            next_end = self._now + (self._running[0][0] - self._done) * slowness
            if next_end > now:
                self.row_seconds += len(self._running) * (now - self._now)
                self._done += (now - self._now) / slowness
                break
            self.row_seconds += len(self._running) * (next_end - self._now)
            self._done, arrived = heapq.heappop(self._running)
            self._now = next_end
            ended.append(Ended(arrived, next_end))
            if self._line:
                waited, work = self._line.popleft()
                heapq.heappush(self._running, (self._done + work, waited))
        self._now = now
        return ended
