"""Simulation of a day of traffic on an autoscaled fleet of replicas."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

import numpy as np

from loadtest.capacity.autoscaling_policies import Policy, PolicyInput, ReplicaLoad
from loadtest.capacity.replica_simulation import CompletedCall, Replica, ReplicaProfile

HOUR = 3600.0
_SAMPLE_SECONDS = 1.0  # between samples of the replicas' loads


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests per second over a day: minimum at 04:00, maximum at 16:00, with random bursts."""

    mean: float
    daily_amplitude: float = 0.6  # relative to the mean
    bursts: int = 6
    burst_factor: float = 3.0
    burst_seconds: float = 300.0
    hours: float = 24.0
    seed: int = 0

    def burst_starts(self) -> list[float]:
        rng = random.Random(self.seed)
        return sorted(rng.uniform(0, self.hours * HOUR) for _ in range(self.bursts))

    @property
    def peak(self) -> float:
        return self.mean * (1 + self.daily_amplitude) * (self.burst_factor if self.bursts else 1)

    def rate(self) -> Callable[[float], float]:
        """Return the rate as a function of the second of the day."""
        starts = self.burst_starts()

        def at(second: float) -> float:
            usual = self.mean * (1 - self.daily_amplitude * math.cos(2 * math.pi * (second / HOUR - 4) / 24))
            bursting = any(start <= second < start + self.burst_seconds for start in starts)
            return usual * (self.burst_factor if bursting else 1)

        return at

    def arrivals(self) -> Iterator[float]:
        """Yield the arrival times of a Poisson process with this rate, by thinning."""
        rate, rng, now, end = self.rate(), random.Random(self.seed + 1), 0.0, self.hours * HOUR
        while (now := now + rng.expovariate(self.peak)) < end:
            if rng.random() * self.peak < rate(now):
                yield now


@dataclass(frozen=True, slots=True)
class FleetSettings:
    min_replicas: int = 1
    max_replicas: int = 1000
    cold_start: float = 20.0  # seconds until a new replica answers
    objective: float = 2.0  # latency in seconds


@dataclass(frozen=True, slots=True)
class MinuteStats:
    minute: int
    offered: float  # requests per second
    replicas: int  # billed
    ready: int
    p95: float | None  # seconds
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DayResult:
    policy: str
    calls: int
    rejected: int
    p50: float
    p95: float
    p99: float
    late_or_rejected: float  # fraction of all requests
    worst_minute: float | None  # highest p95 of a minute
    replica_hours: float
    utilisation: float  # fraction of billed slot time in use
    peak_replicas: int
    minutes: list[MinuteStats] = field(repr=False)


class Fleet:
    """An autoscaled fleet: new replicas start cold, removed ones drain, requests go to the least loaded replica."""

    def __init__(self, profile: ReplicaProfile, policy: Policy, settings: FleetSettings) -> None:
        self._profile, self._policy, self._settings = profile, policy, settings
        self.target = settings.min_replicas
        self.ready = [Replica(profile) for _ in range(settings.min_replicas)]
        self.starting: deque[float] = deque()  # time at which each becomes ready
        self.draining: list[Replica] = []
        self.replica_seconds = self.slot_seconds = 0.0
        self._window = max(1, int(policy.lookback_seconds / _SAMPLE_SECONDS))
        self._load_history: dict[Replica, deque[ReplicaLoad]] = {}
        self._decided_at = 0.0

    @property
    def billed(self) -> int:
        return len(self.ready) + len(self.starting) + len(self.draining)

    def submit(self, now: float, work: float) -> tuple[bool, list[CompletedCall]]:
        """Return whether the request is accepted and the requests completed by `now`."""
        completed = [call for replica in self.ready for call in replica.advance_to(now)]
        return min(self.ready, key=lambda replica: replica.ongoing).submit(now, work), completed

    def tick(self, now: float) -> list[CompletedCall]:
        """Advance all replicas to `now`, sample their loads and let the policy decide when its interval has passed."""
        completed = [call for replica in (*self.ready, *self.draining) for call in replica.advance_to(now)]
        for drained in [replica for replica in self.draining if not replica.ongoing]:
            self.slot_seconds += drained.slot_seconds
            self.draining.remove(drained)
        while self.starting and self.starting[0] <= now:
            self.starting.popleft()
            self.ready.append(Replica(self._profile, now))
        self.replica_seconds += self.billed * _SAMPLE_SECONDS
        for replica in self.ready:
            history = self._load_history.setdefault(replica, deque(maxlen=self._window))
            history.append(ReplicaLoad(replica.utilisation, replica.wait, replica.ongoing))
        if now - self._decided_at >= self._policy.interval_seconds:
            self._decided_at = now
            self._scale(now)
        return completed

    def close(self) -> list[CompletedCall]:
        """Run all replicas until they are idle."""
        return [call for replica in (*self.ready, *self.draining) for call in replica.advance_to(math.inf)]

    def used_slot_seconds(self) -> float:
        return self.slot_seconds + sum(replica.slot_seconds for replica in (*self.ready, *self.draining))

    def _scale(self, now: float) -> None:
        desired = self._policy.desired_replicas(PolicyInput(now, self.target, self._average_loads()))
        self.target = min(max(desired, self._settings.min_replicas), self._settings.max_replicas)
        current = len(self.ready) + len(self.starting)
        self.starting.extend([now + self._settings.cold_start] * (self.target - current))
        for _ in range(current - self.target):
            if self.starting:
                self.starting.pop()
            else:
                idlest = min(self.ready, key=lambda replica: replica.ongoing)
                self.ready.remove(idlest)
                del self._load_history[idlest]
                self.draining.append(idlest)

    def _average_loads(self) -> list[ReplicaLoad]:
        """Return the mean load of each ready replica over its samples in the window."""
        return [_mean(self._load_history[replica]) for replica in self.ready]


def _mean(loads: Collection[ReplicaLoad]) -> ReplicaLoad:
    columns = zip(*((load.utilisation, load.wait, load.ongoing) for load in loads), strict=True)
    return ReplicaLoad(*(sum(column) / len(loads) for column in columns))


def simulate(profile: ReplicaProfile, traffic: Traffic, policy: Policy, settings: FleetSettings) -> DayResult:
    """Simulate the traffic on a fleet with this policy; deterministic for a given traffic seed."""
    fleet, rng = Fleet(profile, policy, settings), random.Random(traffic.seed + 2)
    completed: list[CompletedCall] = []
    rejected: list[float] = []
    replicas: list[tuple[int, int]] = []  # billed and ready at the end of each minute
    tick = _SAMPLE_SECONDS
    for now in traffic.arrivals():
        while tick <= now:
            completed += fleet.tick(tick)
            if tick % 60 < _SAMPLE_SECONDS:
                replicas.append((fleet.billed, len(fleet.ready)))
            tick += _SAMPLE_SECONDS
        accepted, newly_completed = fleet.submit(now, profile.work(rng.gauss(0, 1)))
        completed += newly_completed
        if not accepted:
            rejected.append(now)
    used_slot_seconds = fleet.used_slot_seconds()
    completed += fleet.close()
    seconds = np.array([call.seconds for call in completed])
    p50, p95, p99 = (float(value) for value in np.percentile(seconds, (50, 95, 99)))
    calls, minutes = len(completed) + len(rejected), _minutes(completed, rejected, replicas, traffic)
    return DayResult(
        policy=policy.name,
        calls=calls,
        rejected=len(rejected),
        p50=p50,
        p95=p95,
        p99=p99,
        late_or_rejected=(int((seconds > settings.objective).sum()) + len(rejected)) / calls,
        worst_minute=max((minute.p95 for minute in minutes if minute.p95 is not None), default=None),
        replica_hours=fleet.replica_seconds / HOUR,
        utilisation=used_slot_seconds / (fleet.replica_seconds * profile.slots),
        peak_replicas=max(minute.replicas for minute in minutes),
        minutes=minutes,
    )


def _minutes(
    completed: list[CompletedCall], rejected: list[float], replicas: list[tuple[int, int]], traffic: Traffic
) -> list[MinuteStats]:
    completed.sort(key=lambda call: call.arrived)
    seconds = np.array([call.seconds for call in completed])
    edges = np.searchsorted([call.arrived for call in completed], 60.0 * np.arange(len(replicas) + 1))
    rejections = np.bincount((np.array(rejected) // 60).astype(int), minlength=len(replicas))
    rate, minutes = traffic.rate(), []
    for index, (billed, ready) in enumerate(replicas):
        part = seconds[edges[index] : edges[index + 1]]
        p95 = float(np.percentile(part, 95)) if len(part) else None
        minutes.append(MinuteStats(index, rate(60.0 * index + 30), billed, ready, p95, int(rejections[index])))
    return minutes
