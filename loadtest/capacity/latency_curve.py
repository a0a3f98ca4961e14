"""Latency of a single replica as a function of the rate: measured, simulated and compared."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from loadtest.capacity.replica_simulation import CompletedCall, Replica, ReplicaProfile

_CALLS = 4000  # per simulated point
_WARM_UP = 0.1  # fraction of an unbounded run that is ignored
_MIN_CALLS = 30  # per phase
_MIN_POINTS = 3
_SEED = 20


class InvalidRampError(Exception):
    """The file is not a usable ramp; the message states the fix."""


@dataclass(frozen=True, slots=True)
class Point:
    rate: float  # offered requests per second
    p50: float  # seconds
    p95: float
    rejected: float  # fraction of requests
    seconds: float = math.inf  # duration, starting from an idle replica


@dataclass(frozen=True, slots=True)
class PointComparison:
    rate: float
    measured: Point
    simulated: Point
    fitted: bool  # whether the simulation was fitted to this point

    @property
    def p50_ratio(self) -> float:
        return self.simulated.p50 / self.measured.p50

    @property
    def p95_ratio(self) -> float:
        return self.simulated.p95 / self.measured.p95


class MeasuredCurve:
    """The phases of a ramp, sorted by rate; raises InvalidRampError if the file is unusable."""

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise InvalidRampError(f"{file} does not exist; `python -m loadtest.scenarios ramp` creates it")
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("scenario") != "ramp":
            raise InvalidRampError(f"{file} is not a ramp; `python -m loadtest.scenarios ramp` creates it")
        self.objective = content["objective"]
        self.models = [entry["name"] for entry in content["models"]]
        self.slots = _slots(content, file)
        self.points = sorted(
            (_point(entry) for entry in content["phases"] if _has_enough_calls(entry)), key=lambda entry: entry.rate
        )
        if len(self.points) < _MIN_POINTS:
            raise InvalidRampError(
                f"{file} has {len(self.points)} phases with at least {_MIN_CALLS} requests; "
                f"the minimum is {_MIN_POINTS}"
            )
        self.measured_capacity: float | None = content["verdict"]["rate"]


class Fit:
    """Fits a replica profile to every other point of a measured curve."""

    def __init__(self, measured: MeasuredCurve, max_wait: float) -> None:
        self._points, self._slots, self._wait = measured.points, measured.slots, max_wait
        self._fitted = self._points[::2] if len(self._points) > _MIN_POINTS else self._points

    @cached_property
    def profile(self) -> ReplicaProfile:
        first = self._points[0]
        max_rate = max(point.rate * (1 - point.rejected) for point in self._points)
        contention = max(1e-3, (self._slots / (max_rate * first.p50) - 1) / max(self._slots - 1, 1))
        start = np.log([first.p50, contention, max(0.1, np.log(first.p95 / first.p50) / 1.645)])
        result = minimize(self._distance, start, method="Nelder-Mead", options={"maxfev": 120, "xatol": 0.01})
        return self._profile(result.x)

    def comparisons(self) -> list[PointComparison]:
        return [
            PointComparison(
                point.rate, point, simulated(self.profile, point.rate, point.seconds), point in self._fitted
            )
            for point in self._points
        ]

    def _profile(self, logs: Sequence[float]) -> ReplicaProfile:
        base_seconds, contention, spread = (float(point) for point in np.exp(logs))
        return ReplicaProfile(self._slots, base_seconds, contention, spread, self._wait)

    def _distance(self, logs: Sequence[float]) -> float:
        profile, distance = self._profile(logs), 0.0
        for point in self._fitted:
            simulation = simulated(profile, point.rate, point.seconds)
            distance += np.log(simulation.p50 / point.p50) ** 2 + np.log(simulation.p95 / point.p95) ** 2
            distance += 4 * (simulation.rejected - point.rejected) ** 2
        return distance


def simulated(profile: ReplicaProfile, rate: float, seconds: float = math.inf, calls: int = _CALLS) -> Point:
    """Simulate about `calls` requests in runs of `seconds`; random draws are the same for every profile."""
    rng = np.random.default_rng(_SEED)
    run_calls = calls if seconds == math.inf else max(1, round(rate * seconds))
    latencies: list[float] = []
    rejected = 0
    for _ in range(math.ceil(calls / run_calls)):
        arrivals = np.cumsum(rng.exponential(1 / rate, run_calls)).tolist()
        start = arrivals[int(_WARM_UP * calls)] if seconds == math.inf else 0.0
        replica, completed = Replica(profile), list[CompletedCall]()
        for now, normal in zip(arrivals, rng.standard_normal(run_calls).tolist(), strict=True):
            completed += replica.advance_to(now)
            rejected += not replica.submit(now, profile.work(normal))
        completed += replica.advance_to(math.inf)
        latencies += [call.seconds for call in completed if call.arrived >= start]
    p50, p95 = (float(value) for value in np.percentile(latencies, (50, 95)))
    return Point(rate, p50, p95, rejected / (run_calls * math.ceil(calls / run_calls)), seconds)


def describe_agreement(comparisons: Sequence[PointComparison]) -> str:
    """Describe the error of the simulation on the points it was not fitted to, or on all if there are none."""
    judged = [comparison for comparison in comparisons if not comparison.fitted] or list(comparisons)
    points = "points not used for fitting" if not judged[0].fitted else "points, all used for fitting"
    errors = {
        name: [abs(getattr(comparison, name) - 1) for comparison in judged] for name in ("p50_ratio", "p95_ratio")
    }
    errors_text = (
        f"{name.partition('_')[0]} differs by {100 * statistics.median(values):.0f} % "
        f"(median; maximum {100 * max(values):.0f} %)"
        for name, values in errors.items()
    )
    return f"Simulation compared with measurement at {len(judged)} {points}: {', '.join(errors_text)}."


def max_rate_within(profile: ReplicaProfile, p95: float, errors: float) -> float:
    """Return the highest rate of one replica with p95 within `p95` seconds and at most `errors` rejected."""
    low, high = 0.0, 2 * profile.max_rate
    for _ in range(12):
        middle = (low + high) / 2
        point = simulated(profile, middle)
        low, high = (middle, high) if point.p95 <= p95 and point.rejected <= errors else (low, middle)
    return low


def _point(phase: dict[str, dict[str, float]]) -> Point:
    latency, call_counts = phase["latency"], phase["call_counts"]
    rate: float = phase["phase"]["rate"]
    return Point(
        rate,
        latency["p50"] / 1e3,
        latency["p95"] / 1e3,
        call_counts["rejected"] / call_counts["sent"],
        phase["phase"]["seconds"],
    )


def _has_enough_calls(phase: dict[str, dict[str, float]]) -> bool:
    return phase["latency"]["count"] >= _MIN_CALLS


def _slots(content: dict[str, list[dict[str, float]]], file: Path) -> int:
    """Return the slots that the metrics reported; a model without slots has as many as were ever in use."""
    reported = [second["slots"] or 0 for second in content["seconds"]]
    in_use = [second["slots_in_use"] or 0 for second in content["seconds"]]
    slots = int(max([*reported, *in_use], default=0))
    if not slots:
        raise InvalidRampError(
            f"{file} has no slots in use; run the ramp with --metrics set to the service's metrics endpoint"
        )
    return slots
