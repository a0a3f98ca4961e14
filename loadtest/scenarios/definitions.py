"""Load-test scenarios: sequences of phases, each chosen from the results of the earlier ones."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadtest.traffic.samples import CallCounts, LatencySummary


@dataclass(frozen=True, slots=True)
class Objective:
    """Service-level objective."""

    p95_ms: float
    errors: float  # maximum fraction of requests

    def holds(self, latency: LatencySummary, call_counts: CallCounts) -> bool:
        return latency.p95 is not None and latency.p95 <= self.p95_ms and call_counts.errors <= self.errors

    def __str__(self) -> str:
        return f"p95 within {self.p95_ms:g} ms and at most {100 * self.errors:g} % errors"


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    rate: float  # requests per second
    seconds: float
    cancel_share: float = 0.0  # fraction of requests that the client cancels


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """Result of a phase, over the requests that were due in it."""

    phase: Phase
    begin: float  # seconds since the scenario's start
    end: float
    call_counts: CallCounts
    answered_per_second: float
    latency: LatencySummary
    rejection: LatencySummary
    first_chunk: LatencySummary
    send_delay: LatencySummary  # of the load generator
    generator_cores: float
    objective_met: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    holds: bool
    rate: float | None  # highest rate that met the objective
    summary: str


class Scenario(ABC):
    name: ClassVar[str]
    description: ClassVar[str]
    needs_rate: ClassVar[bool] = True
    seconds: ClassVar[float]  # default duration of a phase

    def __init__(self, rate: float, seconds: float, objective: Objective, max_rate: float = math.inf) -> None:
        """`rate` is the capacity of the service; for a ramp it is the first rate and `max_rate` the last."""
        self.rate, self.phase_seconds, self.objective, self.max_rate = rate, seconds, objective, max_rate

    @abstractmethod
    def next_phase(self, phase_results: Sequence[PhaseResult]) -> Phase | None: ...

    @abstractmethod
    def verdict(self, phase_results: Sequence[PhaseResult]) -> Verdict: ...


def best_rate(phase_results: Sequence[PhaseResult]) -> float | None:
    return max((result.phase.rate for result in phase_results if result.objective_met), default=None)


class Ramp(Scenario):
    """Increases the rate by half until the objective is missed, then bisects twice.

    The final rate is held for longer, because a slowly growing queue can stay within the limit for one phase.
    """

    name = "ramp"
    description = "increasing rate up to the capacity"
    needs_rate = False
    seconds = 20.0
    growth: ClassVar[float] = 1.5
    refinements: ClassVar[int] = 2
    hold_factor: ClassVar[int] = 3  # duration of the final phase relative to the others
    max_phases: ClassVar[int] = 24

    def next_phase(self, phase_results: Sequence[PhaseResult]) -> Phase | None:
        failed_rate = min((result.phase.rate for result in phase_results if not result.objective_met), default=math.inf)
        met_rate = best_rate([result for result in phase_results if result.phase.rate < failed_rate])
        if len(phase_results) >= self.max_phases:
            return None
        if failed_rate == math.inf:
            return self._phase(self.rate if met_rate is None else met_rate * self.growth)
        if met_rate is None or self._is_held(met_rate, phase_results):
            return None
        if len(phase_results) - _first_failed(phase_results) <= self.refinements:
            return self._phase((met_rate + failed_rate) / 2)
        return Phase(f"{met_rate:.3g}/s held", met_rate, self.hold_factor * self.phase_seconds)

    def _phase(self, rate: float) -> Phase | None:
        return Phase(f"{rate:.3g}/s", rate, self.phase_seconds) if rate <= self.max_rate else None

    def _is_held(self, rate: float, phase_results: Sequence[PhaseResult]) -> bool:
        return any(
            result.objective_met and result.phase.rate == rate and result.phase.seconds > self.phase_seconds
            for result in phase_results
        )

    def verdict(self, phase_results: Sequence[PhaseResult]) -> Verdict:
        failed_rate = min((result.phase.rate for result in phase_results if not result.objective_met), default=None)
        rate = best_rate([result for result in phase_results if failed_rate is None or result.phase.rate < failed_rate])
        if rate is None:
            first = phase_results[0].phase.rate
            summary = f"The first rate, {first:.3g} requests/s, missed the objective: {self.objective}."
        elif failed_rate is None:
            summary = f"The capacity was not reached: {rate:.3g} requests/s met the objective: {self.objective}."
        else:
            summary = (
                f"The highest rate with {self.objective} is {rate:.3g} requests/s, "
                f"held for {self.hold_factor * self.phase_seconds:g} s; {failed_rate:.3g} requests/s missed it."
            )
        return Verdict(rate is not None, rate, summary)


class _FixedPhases(Scenario):
    """A scenario whose phases do not depend on results."""

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]: ...

    def next_phase(self, phase_results: Sequence[PhaseResult]) -> Phase | None:
        phases = self.phases()
        return phases[len(phase_results)] if len(phase_results) < len(phases) else None


class Steady(_FixedPhases):
    name = "steady"
    description = "70 % of the capacity"
    seconds = 120.0

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("steady", 0.7 * self.rate, self.phase_seconds),)

    def verdict(self, phase_results: Sequence[PhaseResult]) -> Verdict:
        held = phase_results[0].objective_met
        return Verdict(
            held,
            best_rate(phase_results),
            f"{phase_results[0].phase.rate:.3g} requests/s, 70 % of {self.rate:.3g}, "
            f"{_met_or_missed(held)} the objective: {self.objective}.",
        )


class Burst(_FixedPhases):
    name = "burst"
    description = "70 % of the capacity, five times the capacity, 70 % again"
    seconds = 20.0
    factor: ClassVar[float] = 5.0
    min_goodput: ClassVar[float] = 0.9
    max_rejection_ms: ClassVar[float] = 50.0  # p95

    def phases(self) -> tuple[Phase, ...]:
        normal = 0.7 * self.rate
        return (
            Phase("before", normal, self.phase_seconds),
            Phase("burst", self.factor * self.rate, self.phase_seconds),
            Phase("after", normal, self.phase_seconds),
        )

    def verdict(self, phase_results: Sequence[PhaseResult]) -> Verdict:
        before, burst, after = phase_results
        goodput = burst.answered_per_second / self.rate
        rejections = "no request was rejected"
        if burst.rejection.p95 is not None:
            p95, limit = burst.rejection.p95, self.max_rejection_ms
            rejections = f"rejections took {p95:.0f} ms (p95; target {limit:g}: {_met_or_missed(p95 <= limit)})"
        failed = burst.call_counts.failed + before.call_counts.failed + after.call_counts.failed
        summary = (
            f"At {self.factor:g} × {self.rate:.3g} requests/s, {burst.answered_per_second:.3g} requests/s were "
            f"answered, {goodput:.2f} of the capacity (target {self.min_goodput:g}: "
            f"{_met_or_missed(goodput >= self.min_goodput)}); "
            f"{rejections}; {failed} requests failed with other errors. "
            f"After the burst the objective ({self.objective}) was {_met_or_missed(after.objective_met)}."
        )
        return Verdict(before.objective_met and after.objective_met and not failed, best_rate(phase_results), summary)


class Soak(_FixedPhases):
    name = "soak"
    description = "half of the capacity for a long time, checked for growing latency"
    seconds = 450.0  # per quarter
    quarters: ClassVar[int] = 4
    max_growth: ClassVar[float] = 1.5  # of p95, last quarter to first

    def phases(self) -> tuple[Phase, ...]:
        return tuple(
            Phase(f"quarter {index + 1}", 0.5 * self.rate, self.phase_seconds) for index in range(self.quarters)
        )

    def verdict(self, phase_results: Sequence[PhaseResult]) -> Verdict:
        first, last = phase_results[0].latency.p95, phase_results[-1].latency.p95
        growth = last / first if first and last else float("inf")
        held = all(result.objective_met for result in phase_results) and growth <= self.max_growth
        summary = (
            f"p95 of the last quarter was {growth:.2f} times that of the first at "
            f"{phase_results[0].phase.rate:.3g} requests/s; {sum(result.objective_met for result in phase_results)} of "
            f"{len(phase_results)} quarters met the objective: {self.objective}."
        )
        return Verdict(held, best_rate(phase_results), summary)


class CancelStorm(_FixedPhases):
    name = "cancel-storm"
    description = "half of the capacity, full capacity with 80 % of the requests cancelled, half again"
    seconds = 20.0
    cancel_share: ClassVar[float] = 0.8

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("before", 0.5 * self.rate, self.phase_seconds),
            Phase("storm", self.rate, self.phase_seconds, self.cancel_share),
            Phase("after", 0.5 * self.rate, self.phase_seconds),
        )

    def verdict(self, phase_results: Sequence[PhaseResult]) -> Verdict:
        storm, after = phase_results[1], phase_results[2]
        held = all(result.objective_met for result in phase_results)
        summary = (
            f"{storm.call_counts.cancelled} of {storm.call_counts.sent} requests were cancelled at "
            f"{storm.phase.rate:.3g} requests/s; for the others the objective ({self.objective}) was "
            f"{_met_or_missed(storm.objective_met)}, and afterwards {_met_or_missed(after.objective_met)}."
        )
        return Verdict(held, best_rate(phase_results), summary)


SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name: scenario for scenario in (Ramp, Steady, Burst, Soak, CancelStorm)
}


def _met_or_missed(held: bool) -> str:
    return "met" if held else "missed"


def _first_failed(phase_results: Sequence[PhaseResult]) -> int:
    return next(index for index, result in enumerate(phase_results) if not result.objective_met)
