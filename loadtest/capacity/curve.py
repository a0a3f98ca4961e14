"""Latency against rate of a single replica: measured, simulated, and how well the two agree."""

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

from loadtest.capacity.replica import Ended, Pace, Replica

_CALLS = 4000  # in each point of a simulated curve
_WARM_UP = 0.1  # of the calls of a run without end are left out
_FEWEST_CALLS = 30  # in a phase that counts
_FEWEST_POINTS = 3
_SEED = 20


class NoCurveError(Exception):
    """There is nothing to go by; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class Point:
    rate: float  # calls a second, offered
    p50: float  # seconds
    p95: float
    refused: float  # the share of calls
    seconds: float = math.inf  # that it went on for, from an idle replica


@dataclass(frozen=True, slots=True)
class Compared:
    rate: float
    measured: Point
    simulated: Point
    fitted: bool  # whether the simulation was fitted to it, or only compared

    @property
    def p50_ratio(self) -> float:
        return self.simulated.p50 / self.measured.p50

    @property
    def p95_ratio(self) -> float:
        return self.simulated.p95 / self.measured.p95


class Measured:
    """A ramp's phases, in the order of their rates."""

    def __init__(self, file: Path) -> None:
        if not file.is_file():
            raise NoCurveError(f"{file} is not there; `python -m loadtest.scenarios ramp` measures one")
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("scenario") != "ramp":
            raise NoCurveError(f"{file} is no ramp; `python -m loadtest.scenarios ramp` measures one")
        self.objective = content["objective"]
        self.models = [each["name"] for each in content["models"]]
        self.rows = _rows(content, file)
        self.points = sorted((_point(each) for each in content["phases"] if _counts(each)), key=lambda each: each.rate)
        if len(self.points) < _FEWEST_POINTS:
            raise NoCurveError(f"{file} has {len(self.points)} phases of enough calls; it needs {_FEWEST_POINTS}")
        self.carried: float | None = content["verdict"]["rate"]


class Fit:
    """A pace whose simulated curve is nearest to every other point of a measured one."""

    def __init__(self, measured: Measured, longest_wait: float) -> None:
        self._points, self._rows, self._wait = measured.points, measured.rows, longest_wait
        several = len(self._points) > _FEWEST_POINTS
        self._fitted = self._points[::2] if several else self._points

    @cached_property
    def pace(self) -> Pace:
        first = self._points[0]
        most = max(each.rate * (1 - each.refused) for each in self._points)
        crowding = max(1e-3, (self._rows / (most * first.p50) - 1) / max(self._rows - 1, 1))
        start = np.log([first.p50, crowding, max(0.1, np.log(first.p95 / first.p50) / 1.645)])
        found = minimize(self._distance, start, method="Nelder-Mead", options={"maxfev": 120, "xatol": 0.01})
        return self._pace(found.x)

    def compared(self) -> list[Compared]:
        return [
            Compared(each.rate, each, simulated(self.pace, each.rate, each.seconds), each in self._fitted)
            for each in self._points
        ]

    def _pace(self, logs: Sequence[float]) -> Pace:
        alone, crowding, spread = (float(each) for each in np.exp(logs))
        return Pace(self._rows, alone, crowding, spread, self._wait)

    def _distance(self, logs: Sequence[float]) -> float:
        pace, sum_ = self._pace(logs), 0.0
        for each in self._fitted:
            found = simulated(pace, each.rate, each.seconds)
            sum_ += np.log(found.p50 / each.p50) ** 2 + np.log(found.p95 / each.p95) ** 2
            sum_ += 4 * (found.refused - each.refused) ** 2
        return sum_


def simulated(pace: Pace, rate: float, seconds: float = math.inf, calls: int = _CALLS) -> Point:
    """So many calls, in runs of so many seconds; the same draws for every pace: what differs is theirs."""
    rng = np.random.default_rng(_SEED)
    of_a_run = calls if seconds == math.inf else max(1, round(rate * seconds))
    found: list[float] = []
    refused = 0
    for _ in range(math.ceil(calls / of_a_run)):
        arrivals = np.cumsum(rng.exponential(1 / rate, of_a_run)).tolist()
        begin = arrivals[int(_WARM_UP * calls)] if seconds == math.inf else 0.0
        replica, ended = Replica(pace), list[Ended]()
        for now, normal in zip(arrivals, rng.standard_normal(of_a_run).tolist(), strict=True):
            ended += replica.until(now)
            refused += not replica.arrive(now, pace.work(normal))
        ended += replica.until(math.inf)
        found += [each.seconds for each in ended if each.arrived >= begin]
    p50, p95 = (float(each) for each in np.percentile(found, (50, 95)))
    return Point(rate, p50, p95, refused / (of_a_run * math.ceil(calls / of_a_run)), seconds)


def how_well(compared: Sequence[Compared]) -> str:
    """In a sentence; of the points that the simulation was not fitted to, where there are any."""
    judged = [each for each in compared if not each.fitted] or list(compared)
    whom = "points it was not fitted to" if not judged[0].fitted else "points, all of which it was fitted to"
    errors = {name: [abs(getattr(each, name) - 1) for each in judged] for name in ("p50_ratio", "p95_ratio")}
    words = (
        f"{name.partition('_')[0]} is off by {100 * statistics.median(values):.0f} % "
        f"(median; at most {100 * max(values):.0f} %)"
        for name, values in errors.items()
    )
    return f"Simulated beside measured, at {len(judged)} {whom}: {', '.join(words)}."


def within(pace: Pace, p95: float, errors: float) -> float:
    """The highest rate of one replica with p95 in so many seconds and at most so large a share refused."""
    low, high = 0.0, 2 * pace.most
    for _ in range(12):
        middle = (low + high) / 2
        found = simulated(pace, middle)
        low, high = (middle, high) if found.p95 <= p95 and found.refused <= errors else (low, middle)
    return low


def _point(phase: dict[str, dict[str, float]]) -> Point:
    latency, tally = phase["latency"], phase["tally"]
    rate: float = phase["phase"]["rate"]
    return Point(
        rate, latency["p50"] / 1e3, latency["p95"] / 1e3, tally["refused"] / tally["sent"], phase["phase"]["seconds"]
    )


def _counts(phase: dict[str, dict[str, float]]) -> bool:
    return phase["latency"]["count"] >= _FEWEST_CALLS


def _rows(content: dict[str, list[dict[str, float]]], file: Path) -> int:
    """As the service's page told them; a model without rows has as many as were ever in use."""
    told = [each["rows"] or 0 for each in content["seconds"]]
    used = [each["rows_in_use"] or 0 for each in content["seconds"]]
    rows = int(max([*told, *used], default=0))
    if not rows:
        raise NoCurveError(f"{file} has no rows in use: the ramp did not see the service's page of metrics")
    return rows
