"""Simulation of one replica: slots that share its speed, a queue and a maximum wait."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaProfile:
    slots: int
    base_seconds: float  # duration of an average request on an idle replica
    contention: float  # relative slow-down per other slot in use
    spread: float  # sigma of the log-normal work per request, whose mean is 1
    max_wait: float = 2.0  # seconds; requests that would wait longer are rejected

    def seconds_per_unit(self, in_use: int) -> float:
        """Return the seconds per unit of work when `in_use` slots are in use."""
        return self.base_seconds * (1 + self.contention * (in_use - 1))

    @property
    def max_rate(self) -> float:
        """Requests per second with all slots in use."""
        return self.slots / self.seconds_per_unit(self.slots)

    def work(self, normal: float) -> float:
        """Return the work of a request from a standard normal draw."""
        return math.exp(self.spread * normal - self.spread**2 / 2)


@dataclass(frozen=True, slots=True)
class CompletedCall:
    arrived: float
    finished_at: float

    @property
    def seconds(self) -> float:
        return self.finished_at - self.arrived


class Replica:
    def __init__(self, profile: ReplicaProfile, now: float = 0.0) -> None:
        self.profile, self.since = profile, now
        self.slot_seconds = 0.0  # slot time in use
        self._now, self._done = now, 0.0  # units of work done per slot
        self._running: list[tuple[float, float]] = []  # end in units of work, arrival
        self._queue: deque[tuple[float, float]] = deque()  # arrival, work

    @property
    def ongoing(self) -> int:
        return len(self._running) + len(self._queue)

    @property
    def utilisation(self) -> float:
        return len(self._running) / self.profile.slots

    @property
    def wait(self) -> float:
        """Estimated queueing delay in seconds."""
        return len(self._queue) / self.profile.max_rate

    def submit(self, now: float, work: float) -> bool:
        """Return whether the request is accepted; call `advance_to(now)` first."""
        if len(self._running) < self.profile.slots:
            heapq.heappush(self._running, (self._done + work, now))
        elif self.wait <= self.profile.max_wait:
            self._queue.append((now, work))
        else:
            return False
        return True

    def advance_to(self, now: float) -> list[CompletedCall]:
        """Advance the simulation and return the requests completed by `now`."""
        completed = []
        while self._running:
            seconds_per_unit = self.profile.seconds_per_unit(len(self._running))
            next_end = self._now + (self._running[0][0] - self._done) * seconds_per_unit
            if next_end > now:
                self.slot_seconds += len(self._running) * (now - self._now)
                self._done += (now - self._now) / seconds_per_unit
                break
            self.slot_seconds += len(self._running) * (next_end - self._now)
            self._done, arrived = heapq.heappop(self._running)
            self._now = next_end
            completed.append(CompletedCall(arrived, next_end))
            if self._queue:
                arrival, work = self._queue.popleft()
                heapq.heappush(self._running, (self._done + work, arrival))
        self._now = now
        return completed
