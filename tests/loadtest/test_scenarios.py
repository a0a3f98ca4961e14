"""Phases and verdicts of scenarios, without a service."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable

import pytest

from loadtest.scenarios.definitions import Burst, Objective, Phase, PhaseResult, Ramp, Soak, best_rate
from loadtest.scenarios.metrics_endpoint import count_comparison
from loadtest.traffic import cli_options
from loadtest.traffic.samples import (
    CLIENT_CANCELLED,
    REJECTED,
    LatencySummary,
    Sample,
    call_counts,
    first_chunk_latencies,
    latencies,
    rejections,
    summarise_latencies,
)

OBJECTIVE = Objective(p95_ms=100, errors=0.01)


def sample(
    code: str = "OK", seconds: float = 0.01, method: str = "Classify", first_chunk_seconds: float | None = None
) -> Sample:
    return Sample(0.0, 0.0, seconds, first_chunk_seconds, "grpc", "texts", method, code)


def phase_result(phase: Phase, seconds: float, code: str = "OK") -> PhaseResult:
    """Return the result of a phase with 100 requests of the same latency and code."""
    samples = [sample(code, seconds) for _ in range(100)]
    return PhaseResult(
        phase=phase,
        begin=0,
        end=1,
        call_counts=call_counts(samples),
        answered_per_second=100.0,
        latency=latencies(samples),
        rejection=rejections(samples),
        first_chunk=first_chunk_latencies(samples),
        send_delay=summarise_latencies([0.0]),
        generator_cores=0.1,
        objective_met=OBJECTIVE.holds(latencies(samples), call_counts(samples)),
    )


def run_ramp(capacity: float, max_rate: float = float("inf")) -> tuple[list[PhaseResult], Ramp]:
    ramp, phases = Ramp(10, 1, OBJECTIVE, max_rate), []
    while (phase := ramp.next_phase(phases)) is not None:
        phases.append(phase_result(phase, 0.05 if phase.rate <= capacity else 0.2))
    return phases, ramp


@pytest.mark.parametrize("capacity", [10, 12, 40, 333])
def test_ramp_finds_capacity_within_an_eighth(capacity: float) -> None:
    phases, ramp = run_ramp(capacity)
    verdict = ramp.verdict(phases)
    assert verdict.holds
    assert verdict.rate is not None
    assert verdict.rate <= capacity <= 1.13 * verdict.rate


def test_ramp_final_rate_is_held_for_longer() -> None:
    ramp, phases = Ramp(10, 1, OBJECTIVE), list[PhaseResult]()
    while (phase := ramp.next_phase(phases)) is not None:
        capacity = 40 if phase.seconds == 1 else 30  # a slowly growing queue
        phases.append(phase_result(phase, 0.05 if phase.rate <= capacity else 0.2))
    *_, failed, held = phases
    assert (failed.objective_met, held.objective_met) == (False, True)
    assert failed.phase.seconds == held.phase.seconds == 3
    assert 30 < failed.phase.rate <= 40
    assert ramp.verdict(phases).rate == held.phase.rate <= 30
    assert "held for 3 s" in ramp.verdict(phases).summary


def test_ramp_first_rate_above_capacity_fails() -> None:
    phases, ramp = run_ramp(5)
    assert len(phases) == 1
    assert not ramp.verdict(phases).holds
    assert ramp.verdict(phases).summary.startswith("The first rate, 10 requests/s, missed the objective")


def test_ramp_stops_at_max_rate() -> None:
    phases, ramp = run_ramp(1000, max_rate=40)
    assert [round(result.phase.rate, 1) for result in phases] == [10, 15, 22.5, 33.8]
    assert ramp.verdict(phases).summary.startswith("The capacity was not reached")


def test_objective_is_missed_by_errors_and_by_latency() -> None:
    phase = Phase("one", 1, 1)
    assert phase_result(phase, 0.05).objective_met
    assert not phase_result(phase, 0.05, REJECTED).objective_met
    assert not phase_result(phase, 0.2).objective_met
    assert best_rate([phase_result(phase, 0.2)]) is None


def test_burst_verdict_requires_recovery_and_no_failures() -> None:
    burst = Burst(20, 1, OBJECTIVE)
    assert [round(phase.rate) for phase in burst.phases()] == [14, 100, 14]
    before, during, after = burst.phases()
    good = burst.verdict([phase_result(before, 0.05), phase_result(during, 0.03, REJECTED), phase_result(after, 0.05)])
    assert good.holds
    assert "rejections took 30 ms" in good.summary
    assert not burst.verdict([phase_result(before, 0.05), phase_result(during, 0.03), phase_result(after, 0.5)]).holds
    assert not burst.verdict(
        [phase_result(before, 0.05), phase_result(during, 0.03, "INTERNAL"), phase_result(after, 0.05)]
    ).holds


def test_soak_verdict_rejects_growing_latency() -> None:
    soak = Soak(20, 1, OBJECTIVE)
    quarters = soak.phases()
    assert soak.verdict([phase_result(item, 0.05) for item in quarters]).holds
    slower = [phase_result(item, seconds) for item, seconds in zip(quarters, (0.04, 0.05, 0.06, 0.07), strict=True)]
    assert all(item.objective_met for item in slower)
    assert not soak.verdict(slower).holds


def test_call_counts_add_up_and_exclude_steps() -> None:
    samples = [sample(), sample(REJECTED), sample(CLIENT_CANCELLED), sample("INTERNAL"), sample(method="EpisodeStep")]
    counts = call_counts(samples)
    assert (counts.sent, counts.answered, counts.rejected, counts.cancelled, counts.failed) == (4, 1, 1, 1, 1)
    assert counts.errors == 0.5
    assert latencies([*samples, sample(method="Episode", seconds=9)]).count == 2
    assert first_chunk_latencies([sample(first_chunk_seconds=0.5), sample()]).p50 == 500


def test_summarise_latencies_empty_is_none_and_misses_objective() -> None:
    assert summarise_latencies([]) == LatencySummary(0, None, None, None, None, None)
    assert not OBJECTIVE.holds(summarise_latencies([]), call_counts([]))


INVALID_OPTIONS: list[tuple[Callable[[str], object], str, str]] = [
    (cli_options.positive, "0", "'0' is not a number greater than 0"),
    (cli_options.positive, "inf", "'inf' is not a number greater than 0"),
    (cli_options.positive, "abc", "'abc' is not a number greater than 0"),
    (cli_options.count, "0", "'0' is not an integer greater than 0"),
    (cli_options.count, "-2", "'-2' is not an integer greater than 0"),
    (cli_options.share, "1.5", "'1.5' is not a number from 0 to 1"),
    (cli_options.transports, "smtp", "'smtp' is not one of grpc, http"),
    (cli_options.weights, "a=b", "'a=b' is not NAME=WEIGHT"),
]


@pytest.mark.parametrize(("parse", "text", "message"), INVALID_OPTIONS)
def test_cli_options_invalid_value_raises(parse: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=message):
        parse(text)


def test_cli_options_valid_values_are_parsed() -> None:
    assert cli_options.weights("a=2,b") == {"a": 2.0, "b": 1.0}
    assert cli_options.weights("") == {}
    assert cli_options.transports("grpc,http") == ("grpc", "http")
    assert cli_options.share("0.5") == 0.5


AGREEMENTS = [
    ({"OK": 5}, {"OK": 5}, True),
    ({"OK": 5}, {"OK": 6}, False),
    ({"OK": 5}, {"OK": 4}, False),
    ({"OK": 5, REJECTED: 2}, {"OK": 5, REJECTED: 2}, True),
    ({"OK": 5, REJECTED: 2}, {"OK": 5, "INTERNAL": 2}, False),
    ({"OK": 5, CLIENT_CANCELLED: 2}, {"OK": 6, "CANCELLED": 1}, True),
    ({"OK": 5, CLIENT_CANCELLED: 2}, {"OK": 5}, True),
    ({"OK": 5, CLIENT_CANCELLED: 2}, {"OK": 8}, False),
    ({"OK": 5, CLIENT_CANCELLED: 2}, {"OK": 5, "INTERNAL": 1}, False),
]


@pytest.mark.parametrize(("client", "server", "agrees"), AGREEMENTS)
def test_count_comparison_allows_any_outcome_of_cancelled_requests(
    client: dict[str, int], server: dict[str, int], agrees: bool
) -> None:
    assert count_comparison("texts", Counter(client), Counter(server), CLIENT_CANCELLED).agrees is agrees
