"""How scenarios go on and judge, without a service."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import pytest

from loadtest.scenarios.page import agreement
from loadtest.scenarios.plan import Burst, Done, Objective, Phase, Ramp, Soak, best_rate
from loadtest.traffic import addresses
from loadtest.traffic.samples import LEFT, REFUSED, Sample, Times, first_pieces, latencies, refusals, tally, times

OBJECTIVE = Objective(p95_ms=100, errors=0.01)


def sample(code: str = "OK", seconds: float = 0.01, method: str = "Classify", first: float | None = None) -> Sample:
    return Sample(0.0, 0.0, seconds, first, "grpc", "texts", method, code)


def done(phase: Phase, p95_seconds: float, codes: str = "OK") -> Done:
    """A phase of a hundred calls that took so long."""
    samples = [sample(codes, p95_seconds) for _ in range(100)]
    return Done(
        phase=phase,
        begin=0,
        end=1,
        tally=tally(samples),
        answered_per_second=100.0,
        latency=latencies(samples),
        refusal=refusals(samples),
        first_piece=first_pieces(samples),
        late=times([0.0]),
        generator_cores=0.1,
        within=OBJECTIVE.holds(latencies(samples), tally(samples)),
    )


def climb(knee: float, most: float = float("inf")) -> tuple[list[Done], Ramp]:
    ramp, phases = Ramp(10, 1, OBJECTIVE, most), []
    while (phase := ramp.next_phase(phases)) is not None:
        phases.append(done(phase, 0.05 if phase.rate <= knee else 0.2))
    return phases, ramp


@pytest.mark.parametrize("knee", [10, 12, 40, 333])
def test_a_ramp_ends_within_an_eighth_of_the_knee(knee: float) -> None:
    phases, ramp = climb(knee)
    verdict = ramp.verdict(phases)
    assert verdict.holds
    assert verdict.rate is not None
    assert verdict.rate <= knee <= 1.13 * verdict.rate


def test_what_a_ramp_finds_has_to_hold_for_longer() -> None:
    ramp, phases = Ramp(10, 1, OBJECTIVE), list[Done]()
    while (phase := ramp.next_phase(phases)) is not None:
        knee = 40 if phase.seconds == 1 else 30  # a line that grows slowly
        phases.append(done(phase, 0.05 if phase.rate <= knee else 0.2))
    *_, failed, held = phases
    assert (failed.within, held.within) == (False, True)
    assert failed.phase.seconds == held.phase.seconds == 3
    assert 30 < failed.phase.rate <= 40
    assert ramp.verdict(phases).rate == held.phase.rate <= 30
    assert "held for 3 s" in ramp.verdict(phases).sentence


def test_a_ramp_that_begins_too_high_says_so() -> None:
    phases, ramp = climb(5)
    assert len(phases) == 1
    assert not ramp.verdict(phases).holds
    assert ramp.verdict(phases).sentence.startswith("Even 10 calls a second were too many")


def test_a_ramp_ends_at_the_most_it_may_try() -> None:
    phases, ramp = climb(1000, most=40)
    assert [round(each.phase.rate, 1) for each in phases] == [10, 15, 22.5, 33.8]
    assert ramp.verdict(phases).sentence.startswith("The knee was not reached")


def test_errors_break_the_objective_as_slowness_does() -> None:
    phase = Phase("one", 1, 1)
    assert done(phase, 0.05).within
    assert not done(phase, 0.05, REFUSED).within
    assert not done(phase, 0.2).within
    assert best_rate([done(phase, 0.2)]) is None


def test_a_burst_is_judged_by_what_comes_after_it() -> None:
    burst = Burst(20, 1, OBJECTIVE)
    assert [round(phase.rate) for phase in burst.phases()] == [14, 100, 14]
    before, during, after = burst.phases()
    good = burst.verdict([done(before, 0.05), done(during, 0.03, REFUSED), done(after, 0.05)])
    assert good.holds
    assert "refusals took 30 ms" in good.sentence
    assert not burst.verdict([done(before, 0.05), done(during, 0.03), done(after, 0.5)]).holds
    assert not burst.verdict([done(before, 0.05), done(during, 0.03, "INTERNAL"), done(after, 0.05)]).holds


def test_a_soak_that_gets_slower_is_missed() -> None:
    soak = Soak(20, 1, OBJECTIVE)
    quarters = soak.phases()
    assert soak.verdict([done(each, 0.05) for each in quarters]).holds
    slower = [done(each, seconds) for each, seconds in zip(quarters, (0.04, 0.05, 0.06, 0.07), strict=True)]
    assert all(each.within for each in slower)
    assert not soak.verdict(slower).holds


def test_calls_add_up_and_steps_are_no_calls() -> None:
    samples = [sample(), sample(REFUSED), sample(LEFT), sample("INTERNAL"), sample(method="EpisodeStep")]
    counts = tally(samples)
    assert (counts.sent, counts.answered, counts.refused, counts.left, counts.failed) == (4, 1, 1, 1, 1)
    assert counts.errors == 0.5
    assert latencies([*samples, sample(method="Episode", seconds=9)]).count == 2
    assert first_pieces([sample(first=0.5), sample()]).p50 == 500


def test_nothing_measured_is_not_zero() -> None:
    assert times([]) == Times(0, None, None, None, None, None)
    assert not OBJECTIVE.holds(times([]), tally([]))


MISTAKES: list[tuple[Callable[[str], object], str, str]] = [
    (addresses.positive, "0", "'0' is not a number above 0"),
    (addresses.positive, "inf", "'inf' is not a number above 0"),
    (addresses.positive, "soup", "'soup' is not a number above 0"),
    (addresses.count, "0", "'0' is not a whole number above 0"),
    (addresses.count, "-2", "'-2' is not a whole number above 0"),
    (addresses.share, "1.5", "'1.5' is not a share from 0 to 1"),
    (addresses.ways, "pigeon", "'pigeon' is not among grpc, http"),
    (addresses.weights, "a=b", "'a=b' is not NAME=WEIGHT"),
]


@pytest.mark.parametrize(("read", "text", "sentence"), MISTAKES)
def test_a_mistake_in_an_option_is_told(read: Callable[[str], object], text: str, sentence: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=sentence):
        read(text)


def test_options_are_read() -> None:
    assert addresses.weights("a=2,b") == {"a": 2.0, "b": 1.0}
    assert addresses.weights("") == {}
    assert addresses.ways("grpc,http") == ("grpc", "http")
    assert addresses.share("0.5") == 0.5


AGREEMENTS = [
    ({"OK": 5}, {"OK": 5}, True),
    ({"OK": 5}, {"OK": 6}, False),
    ({"OK": 5}, {"OK": 4}, False),
    ({"OK": 5, REFUSED: 2}, {"OK": 5, REFUSED: 2}, True),
    ({"OK": 5, REFUSED: 2}, {"OK": 5, "INTERNAL": 2}, False),
    ({"OK": 5, LEFT: 2}, {"OK": 6, "CANCELLED": 1}, True),
    ({"OK": 5, LEFT: 2}, {"OK": 5}, True),
    ({"OK": 5, LEFT: 2}, {"OK": 8}, False),
    ({"OK": 5, LEFT: 2}, {"OK": 5, "INTERNAL": 1}, False),
]


@pytest.mark.parametrize(("called", "counted", "agrees"), AGREEMENTS)
def test_who_left_may_have_been_counted_in_any_way(
    called: dict[str, int], counted: dict[str, int], agrees: bool
) -> None:
    assert agreement("texts", Counter(called), Counter(counted), LEFT).agrees is agrees
