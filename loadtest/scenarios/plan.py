"""Scenarios: phases of traffic, each given after what the ones before it came to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from loadtest.traffic.samples import Tally, Times


@dataclass(frozen=True, slots=True)
class Objective:
    """What users were promised."""

    p95_ms: float
    errors: float  # the largest share of calls

    def holds(self, times: Times, tally: Tally) -> bool:
        return times.p95 is not None and times.p95 <= self.p95_ms and tally.errors <= self.errors

    def __str__(self) -> str:
        return f"p95 within {self.p95_ms:g} ms and at most {100 * self.errors:g} % errors"


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    rate: float  # calls a second
    seconds: float
    leaving: float = 0.0  # the share of callers who do not wait for the end


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a phase came to: its calls are those that were due in it."""

    phase: Phase
    begin: float  # seconds since the scenario's start
    end: float
    tally: Tally
    answered_per_second: float
    latency: Times
    refusal: Times
    first_piece: Times
    late: Times  # of the load generator itself
    generator_cores: float
    within: bool  # the objective


@dataclass(frozen=True, slots=True)
class Verdict:
    holds: bool
    rate: float | None  # the highest at which the objective was met
    sentence: str


class Scenario(ABC):
    name: ClassVar[str]
    what: ClassVar[str]
    needs_rate: ClassVar[bool] = True
    seconds: ClassVar[float]  # of a phase, unless told

    def __init__(self, rate: float, seconds: float, objective: Objective, most: float = math.inf) -> None:
        """`rate` is what the service carries; of the ramp, where it begins, and `most` where it ends."""
        self.rate, self.length, self.objective, self.most = rate, seconds, objective, most

    @abstractmethod
    def next_phase(self, done: Sequence[Done]) -> Phase | None: ...

    @abstractmethod
    def verdict(self, done: Sequence[Done]) -> Verdict: ...


def best_rate(done: Sequence[Done]) -> float | None:
    return max((each.phase.rate for each in done if each.within), default=None)


class Ramp(Scenario):
    """Half as much again until the objective breaks, then halfway back, twice. What is left has to hold for longer: a
    line that grows slowly may stay within a limit as long as a phase lasts."""

    name = "ramp"
    what = "more and more, to the knee"
    needs_rate = False
    seconds = 20.0
    growth: ClassVar[float] = 1.5
    refinements: ClassVar[int] = 2
    held_times: ClassVar[int] = 3  # as long as other phases
    most_phases: ClassVar[int] = 24

    def next_phase(self, done: Sequence[Done]) -> Phase | None:
        broken = min((each.phase.rate for each in done if not each.within), default=math.inf)
        good = best_rate([each for each in done if each.phase.rate < broken])
        if len(done) >= self.most_phases:
            return None
        if broken == math.inf:
            return self._phase(self.rate if good is None else good * self.growth)
        if good is None or self._is_held(good, done):
            return None
        if len(done) - _first_broken(done) <= self.refinements:
            return self._phase((good + broken) / 2)
        return Phase(f"{good:.3g}/s held", good, self.held_times * self.length)

    def _phase(self, rate: float) -> Phase | None:
        return Phase(f"{rate:.3g}/s", rate, self.length) if rate <= self.most else None

    def _is_held(self, rate: float, done: Sequence[Done]) -> bool:
        return any(each.within and each.phase.rate == rate and each.phase.seconds > self.length for each in done)

    def verdict(self, done: Sequence[Done]) -> Verdict:
        broken = min((each.phase.rate for each in done if not each.within), default=None)
        rate = best_rate([each for each in done if broken is None or each.phase.rate < broken])
        if rate is None:
            sentence = f"Even {done[0].phase.rate:.3g} calls a second were too many for {self.objective}."
        elif broken is None:
            sentence = f"The knee was not reached: {rate:.3g} calls a second still had {self.objective}."
        else:
            sentence = (
                f"The highest rate with {self.objective} is {rate:.3g} calls a second, "
                f"held for {self.held_times * self.length:g} s; {broken:.3g} were too many."
            )
        return Verdict(rate is not None, rate, sentence)


class _Fixed(Scenario):
    """Phases that are known beforehand."""

    @abstractmethod
    def phases(self) -> tuple[Phase, ...]: ...

    def next_phase(self, done: Sequence[Done]) -> Phase | None:
        phases = self.phases()
        return phases[len(done)] if len(done) < len(phases) else None


class Steady(_Fixed):
    name = "steady"
    what = "70 % of what it carries, for a while"
    seconds = 120.0

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("steady", 0.7 * self.rate, self.length),)

    def verdict(self, done: Sequence[Done]) -> Verdict:
        held = done[0].within
        return Verdict(
            held,
            best_rate(done),
            f"{done[0].phase.rate:.3g} calls a second, 70 % of {self.rate:.3g}, "
            f"{'stayed' if held else 'did not stay'} within the objective: {self.objective}.",
        )


class Burst(_Fixed):
    name = "burst"
    what = "70 %, five times as much as it carries, 70 % again"
    seconds = 20.0
    times: ClassVar[float] = 5.0
    least_goodput: ClassVar[float] = 0.9
    slowest_refusal: ClassVar[float] = 50.0  # ms, p95

    def phases(self) -> tuple[Phase, ...]:
        usual = 0.7 * self.rate
        return (
            Phase("before", usual, self.length),
            Phase("burst", self.times * self.rate, self.length),
            Phase("after", usual, self.length),
        )

    def verdict(self, done: Sequence[Done]) -> Verdict:
        before, burst, after = done
        goodput = burst.answered_per_second / self.rate
        refused = "none were refused"
        if burst.refusal.p95 is not None:
            quick = _judged(burst.refusal.p95 <= self.slowest_refusal)
            refused = f"refusals took {burst.refusal.p95:.0f} ms (p95; target {self.slowest_refusal:g}: {quick})"
        broken = burst.tally.failed + before.tally.failed + after.tally.failed
        sentence = (
            f"At {self.times:g} × {self.rate:.3g} calls a second {burst.answered_per_second:.3g} were answered, "
            f"{goodput:.2f} of that rate (target {self.least_goodput:g}: {_judged(goodput >= self.least_goodput)}); "
            f"{refused}; {broken} calls failed otherwise. "
            f"Afterwards the objective ({self.objective}) was {_judged(after.within)} again."
        )
        return Verdict(before.within and after.within and not broken, best_rate(done), sentence)


class Soak(_Fixed):
    name = "soak"
    what = "half of what it carries, for long: does it get slower?"
    seconds = 450.0  # four times
    quarters: ClassVar[int] = 4
    drift: ClassVar[float] = 1.5

    def phases(self) -> tuple[Phase, ...]:
        return tuple(Phase(f"quarter {index + 1}", 0.5 * self.rate, self.length) for index in range(self.quarters))

    def verdict(self, done: Sequence[Done]) -> Verdict:
        first, last = done[0].latency.p95, done[-1].latency.p95
        grew = last / first if first and last else float("inf")
        held = all(each.within for each in done) and grew <= self.drift
        sentence = (
            f"p95 of the last quarter was {grew:.2f} of the first's at {done[0].phase.rate:.3g} calls a second; "
            f"{sum(each.within for each in done)} of {len(done)} quarters met the objective: {self.objective}."
        )
        return Verdict(held, best_rate(done), sentence)


class CancelStorm(_Fixed):
    name = "cancel-storm"
    what = "half, then as much as it carries with four of five callers leaving, half again"
    seconds = 20.0
    leaving: ClassVar[float] = 0.8

    def phases(self) -> tuple[Phase, ...]:
        return (
            Phase("before", 0.5 * self.rate, self.length),
            Phase("storm", self.rate, self.length, self.leaving),
            Phase("after", 0.5 * self.rate, self.length),
        )

    def verdict(self, done: Sequence[Done]) -> Verdict:
        storm, after = done[1], done[2]
        held = all(each.within for each in done)
        sentence = (
            f"{storm.tally.left} of {storm.tally.sent} callers left at {storm.phase.rate:.3g} calls a second; "
            f"for those who stayed the objective ({self.objective}) was {_judged(storm.within)}, "
            f"and afterwards {_judged(after.within)}."
        )
        return Verdict(held, best_rate(done), sentence)


SCENARIOS: dict[str, type[Scenario]] = {each.name: each for each in (Ramp, Steady, Burst, Soak, CancelStorm)}


def _judged(held: bool) -> str:
    return "met" if held else "missed"


def _first_broken(done: Sequence[Done]) -> int:
    return next(index for index, each in enumerate(done) if not each.within)
