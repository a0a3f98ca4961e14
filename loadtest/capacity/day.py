"""A day of traffic on a fleet that scales itself: who waits, and what stands idle."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from loadtest.capacity.policies import Load, Policy, State
from loadtest.capacity.replica import Ended, Pace, Replica

HOUR = 3600.0
_SAMPLE_SECONDS = 1.0  # from one look at the replicas' loads to the next


@dataclass(frozen=True, slots=True)
class Traffic:
    """Calls a second over a day: least at four in the morning, most at four in the afternoon, and bursts."""

    mean: float
    swing: float = 0.6  # of the mean, up and down
    bursts: int = 6
    burst_times: float = 3.0
    burst_seconds: float = 300.0
    hours: float = 24.0
    seed: int = 0

    def beginnings(self) -> list[float]:
        rng = random.Random(self.seed)
        return sorted(rng.uniform(0, self.hours * HOUR) for _ in range(self.bursts))

    @property
    def peak(self) -> float:
        return self.mean * (1 + self.swing) * (self.burst_times if self.bursts else 1)

    def rate(self) -> Callable[[float], float]:
        begun = self.beginnings()

        def at(second: float) -> float:
            usual = self.mean * (1 - self.swing * math.cos(2 * math.pi * (second / HOUR - 4) / 24))
            bursting = any(begin <= second < begin + self.burst_seconds for begin in begun)
            return usual * (self.burst_times if bursting else 1)

        return at

    def arrivals(self) -> Iterator[float]:
        """A Poisson process of a changing rate: one of the highest rate, thinned."""
        rate, rng, now, end = self.rate(), random.Random(self.seed + 1), 0.0, self.hours * HOUR
        while (now := now + rng.expovariate(self.peak)) < end:
            if rng.random() * self.peak < rate(now):
                yield now


@dataclass(frozen=True, slots=True)
class Settings:
    least: int = 1
    most: int = 1000
    cold_start: float = 20.0  # seconds until a new replica answers
    objective: float = 2.0  # seconds


@dataclass(frozen=True, slots=True)
class Minute:
    minute: int
    offered: float  # calls a second
    replicas: int  # that are paid for
    ready: int
    p95: float | None  # seconds
    refused: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    policy: str
    calls: int
    refused: int
    p50: float
    p95: float
    p99: float
    beyond: float  # share of all calls that took longer than the objective or were refused
    worst_minute: float | None  # p95
    replica_hours: float
    used: float  # the share of paid rows that were in use
    most_replicas: int
    minutes: list[Minute] = field(repr=False)


class Fleet:
    """New replicas start cold, leaving ones finish what they have; callers go to whoever has least to do."""

    def __init__(self, pace: Pace, policy: Policy, settings: Settings) -> None:
        self._pace, self._policy, self._settings = pace, policy, settings
        self.target = settings.least
        self.ready = [Replica(pace) for _ in range(settings.least)]
        self.starting: deque[float] = deque()  # when they will answer
        self.leaving: list[Replica] = []
        self.replica_seconds = self.row_seconds = 0.0
        self._looks = max(1, int(policy.look_back / _SAMPLE_SECONDS))
        self._seen: dict[Replica, deque[Load]] = {}
        self._decided = 0.0

    @property
    def paid(self) -> int:
        return len(self.ready) + len(self.starting) + len(self.leaving)

    def arrive(self, now: float, work: float) -> tuple[bool, list[Ended]]:
        ended = [each for replica in self.ready for each in replica.until(now)]
        return min(self.ready, key=lambda each: each.ongoing).arrive(now, work), ended

    def tick(self, now: float) -> list[Ended]:
        """Once a sample: everyone is brought up to now, loads are seen, and the policy may decide."""
        ended = [each for replica in (*self.ready, *self.leaving) for each in replica.until(now)]
        for gone in [each for each in self.leaving if not each.ongoing]:
            self.row_seconds += gone.row_seconds
            self.leaving.remove(gone)
        while self.starting and self.starting[0] <= now:
            self.starting.popleft()
            self.ready.append(Replica(self._pace, now))
        self.replica_seconds += self.paid * _SAMPLE_SECONDS
        for each in self.ready:
            seen = self._seen.setdefault(each, deque(maxlen=self._looks))
            seen.append(Load(each.share, each.wait, each.ongoing))
        if now - self._decided >= self._policy.every:
            self._decided = now
            self._scale(now)
        return ended

    def close(self) -> list[Ended]:
        return [each for replica in (*self.ready, *self.leaving) for each in replica.until(math.inf)]

    def rows_used(self) -> float:
        return self.row_seconds + sum(each.row_seconds for each in (*self.ready, *self.leaving))

    def _scale(self, now: float) -> None:
        wanted = self._policy.wanted(State(now, self.target, self._averaged()))
        self.target = min(max(wanted, self._settings.least), self._settings.most)
        there = len(self.ready) + len(self.starting)
        self.starting.extend([now + self._settings.cold_start] * (self.target - there))
        for _ in range(there - self.target):
            if self.starting:
                self.starting.pop()
            else:
                idlest = min(self.ready, key=lambda each: each.ongoing)
                self.ready.remove(idlest)
                del self._seen[idlest]
                self.leaving.append(idlest)

    def _averaged(self) -> list[Load]:
        """Of each that answers now, over the looks that it was there for."""
        return [_mean(self._seen[each]) for each in self.ready]


def _mean(loads: Collection[Load]) -> Load:
    columns = zip(*((each.share, each.wait, each.ongoing) for each in loads), strict=True)
    return Load(*(sum(column) / len(loads) for column in columns))


def simulate(pace: Pace, traffic: Traffic, policy: Policy, settings: Settings) -> Day:
    fleet, rng = Fleet(pace, policy, settings), random.Random(traffic.seed + 2)
    ended: list[Ended] = []
    refused: list[float] = []
    replicas: list[tuple[int, int]] = []  # paid and ready at the end of each minute
    tick = _SAMPLE_SECONDS
    for now in traffic.arrivals():
        while tick <= now:
            ended += fleet.tick(tick)
            if tick % 60 < _SAMPLE_SECONDS:
                replicas.append((fleet.paid, len(fleet.ready)))
            tick += _SAMPLE_SECONDS
        taken, done = fleet.arrive(now, pace.work(rng.gauss(0, 1)))
        ended += done
        if not taken:
            refused.append(now)
    used = fleet.rows_used()
    ended += fleet.close()
    seconds = np.array([each.seconds for each in ended])
    p50, p95, p99 = (float(each) for each in np.percentile(seconds, (50, 95, 99)))
    calls, minutes = len(ended) + len(refused), _minutes(ended, refused, replicas, traffic)
    return Day(
        policy=policy.name,
        calls=calls,
        refused=len(refused),
        p50=p50,
        p95=p95,
        p99=p99,
        beyond=(int((seconds > settings.objective).sum()) + len(refused)) / calls,
        worst_minute=max((each.p95 for each in minutes if each.p95 is not None), default=None),
        replica_hours=fleet.replica_seconds / HOUR,
        used=used / (fleet.replica_seconds * pace.rows),
        most_replicas=max(each.replicas for each in minutes),
        minutes=minutes,
    )


def _minutes(
    ended: list[Ended], refused: list[float], replicas: list[tuple[int, int]], traffic: Traffic
) -> list[Minute]:
    ended.sort(key=lambda each: each.arrived)
    seconds = np.array([each.seconds for each in ended])
    edges = np.searchsorted([each.arrived for each in ended], 60.0 * np.arange(len(replicas) + 1))
    refusals = np.bincount((np.array(refused) // 60).astype(int), minlength=len(replicas))
    rate, found = traffic.rate(), []
    for index, (paid, ready) in enumerate(replicas):
        part = seconds[edges[index] : edges[index + 1]]
        p95 = float(np.percentile(part, 95)) if len(part) else None
        found.append(Minute(index, rate(60.0 * index + 30), paid, ready, p95, int(refusals[index])))
    return found
