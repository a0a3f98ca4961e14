"""The simulation, beside what queueing theory knows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadtest.capacity.curve import Fit, Measured, NoCurveError, how_well, simulated, within
from loadtest.capacity.day import Settings, Traffic, simulate
from loadtest.capacity.need import need
from loadtest.capacity.policies import Load, NoPolicyError, ServeDefault, ServePolicy, State, named, ours
from loadtest.capacity.replica import Pace, Replica
from service.scaling import GROW_SECONDS

PACE = Pace(rows=16, alone=0.1, crowding=0.15, spread=0.5)


def responses(pace: Pace, rate: float, calls: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    replica, seconds = Replica(pace), []
    for now in np.cumsum(rng.exponential(1 / rate, calls)).tolist():
        seconds += [each.seconds for each in replica.until(now)]
        assert replica.arrive(now, pace.work(rng.standard_normal()))
    return np.array(seconds + [each.seconds for each in replica.until(float("inf"))])


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_rows_that_only_share_one_speed_are_processor_sharing(load: float, spread: float) -> None:
    """Its mean response is the work over what is left, however the work is spread."""
    pace = Pace(rows=10_000, alone=0.1, crowding=1.0, spread=spread)
    assert responses(pace, load / 0.1, 40_000).mean() == pytest.approx(0.1 / (1 - load), rel=0.08)


def test_rows_that_do_not_slow_each_other_take_no_longer_in_company() -> None:
    pace = Pace(rows=10_000, alone=0.1, crowding=0.0, spread=0.5)
    assert responses(pace, 500, 5_000).mean() == pytest.approx(0.1, rel=0.03)


def test_one_row_is_a_line_of_its_own() -> None:
    """Khinchin and Pollaczek: the wait of a single server."""
    pace = Pace(rows=1, alone=0.1, crowding=0.0, spread=0.5, longest_wait=1e9)
    load, second_moment = 0.6, 0.1**2 * np.exp(0.5**2)
    wanted = 0.1 + load / 0.1 * second_moment / (2 * (1 - load))
    assert responses(pace, load / 0.1, 40_000).mean() == pytest.approx(wanted, rel=0.08)


def test_what_would_wait_too_long_is_refused() -> None:
    point = simulated(PACE, 3 * PACE.most)
    assert point.refused == pytest.approx(2 / 3, abs=0.05)
    assert point.p95 < PACE.longest_wait + 16 * PACE.slowness(16)
    assert simulated(PACE, 0.3 * PACE.most).refused == 0


def test_the_rate_within_an_objective_is_within_it() -> None:
    rate = within(PACE, 0.4, 0.01)
    assert 0 < rate < PACE.most
    assert simulated(PACE, 0.98 * rate).p95 <= 0.4 < simulated(PACE, 1.05 * rate).p95


def write_ramp(file: Path, pace: Pace, rates: list[float], **changes: Any) -> Path:
    """As a scenario writes it, of a service that is as simulated."""
    points = [simulated(pace, rate, 20.0) for rate in rates]
    phases = [
        {
            "phase": {"rate": each.rate, "seconds": each.seconds},
            "latency": {"count": 1000, "p50": 1e3 * each.p50, "p95": 1e3 * each.p95},
            "tally": {"sent": 1000, "refused": round(1000 * each.refused)},
        }
        for each in points
    ]
    content = {
        "scenario": "ramp",
        "models": [{"name": "opus"}],
        "objective": {"p95_ms": 400.0, "errors": 0.01},
        "verdict": {"rate": rates[-2]},
        "phases": phases,
        "seconds": [{"rows": pace.rows, "rows_in_use": 1}],
    }
    file.write_text(json.dumps(content | changes))
    return file


def test_a_fit_finds_the_pace_that_made_a_curve(tmp_path: Path) -> None:
    rates = [0.1 * PACE.most, 0.3 * PACE.most, 0.5 * PACE.most, 0.7 * PACE.most, 0.85 * PACE.most]
    fit = Fit(Measured(write_ramp(tmp_path / "ramp.json", PACE, rates)), PACE.longest_wait)
    assert fit.pace.alone == pytest.approx(PACE.alone, rel=0.1)
    assert fit.pace.most == pytest.approx(PACE.most, rel=0.1)
    compared = fit.compared()
    assert [each.fitted for each in compared] == [True, False, True, False, True]
    assert all(0.85 < each.p95_ratio < 1.15 for each in compared)
    assert "at 2 points it was not fitted to" in how_well(compared)


BAD_RAMPS = [
    ({"scenario": "steady"}, "is no ramp"),
    ({"phases": []}, "has 0 phases of enough calls; it needs 3"),
    ({"seconds": [{"rows": None, "rows_in_use": None}]}, "has no rows in use"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_RAMPS)
def test_what_is_no_curve_is_said(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    file = write_ramp(tmp_path / "ramp.json", PACE, [10, 20, 30], **changes)
    with pytest.raises(NoCurveError, match=sentence):
        Measured(file)
    with pytest.raises(NoCurveError, match="is not there"):
        Measured(tmp_path / "none.json")


def test_replicas_and_their_cost() -> None:
    found = need(100, 30, spare=1, price=0.5)
    assert (found.replicas, found.cost) == (5, 5 * 730 * 0.5)
    assert found.used == pytest.approx(100 / 150)
    assert need(100, 30).replicas == 4
    assert need(100, 30).cost is None


def test_serves_default_waits_before_it_changes_its_mind() -> None:
    policy, busy = ServeDefault(10, up_delay=20, down_delay=60), [Load(0.9, 0, 30)] * 2
    assert [policy.wanted(State(now, 2, busy)) for now in (0, 10, 20)] == [2, 2, 6]
    idle = [Load(0.0, 0, 1)] * 6
    assert [policy.wanted(State(now, 6, idle)) for now in (30, 60, 90)] == [6, 6, 1]


def test_a_policy_for_serve_is_asked_as_serve_asks() -> None:
    asked: list[SimpleNamespace] = []

    def decide(context: SimpleNamespace) -> tuple[int, dict[str, Any]]:
        asked.append(context)
        return context.target_num_replicas + 1, {"seen": len(asked)}

    policy = ServePolicy("one more", decide, up_delay=4.0)
    assert policy.wanted(State(1.0, 2, [Load(0.5, 0.1, 4), Load(0.7, 0.0, 6)])) == 2, "not wanted for long enough"
    assert policy.wanted(State(5.0, 2, [])) == 3
    assert policy.wanted(State(7.0, 3, [])) == 3
    assert asked[0].aggregated_metrics == {"share": {"0": 0.5, "1": 0.7}, "wait_seconds": {"0": 0.1, "1": 0.0}}
    assert asked[0].total_num_requests == 10
    assert (asked[1].policy_state, asked[1].last_scale_up_time) == ({"seen": 1}, None)
    assert (asked[2].policy_state, asked[2].last_scale_up_time) == ({"seen": 2}, 5.0)
    with pytest.raises(NoPolicyError, match="it is written as"):
        named("nowhere:Nothing")


def test_our_own_policy_is_the_one_that_is_served() -> None:
    policy, busy = ours(0.5, wait=2.0, shrink=300.0), [Load(1.0, 0.0, 64)]
    assert [policy.wanted(State(now, 1, busy)) for now in (0.0, 2.0, 2.0 + GROW_SECONDS)] == [1, 1, 2]


@pytest.mark.parametrize("cold_start", [5.0, 120.0])
def test_a_day_adds_up(cold_start: float) -> None:
    traffic = Traffic(mean=0.5 * PACE.most, hours=1.0, bursts=2, seed=1)
    day = simulate(PACE, traffic, ServeDefault(0.7 * PACE.rows), Settings(cold_start=cold_start, objective=0.5))
    assert day.calls == sum(1 for _ in traffic.arrivals())
    assert sum(each.refused for each in day.minutes) <= day.refused <= day.calls
    assert 1.0 <= day.replica_hours <= day.most_replicas
    assert 0 < day.used < 1


def test_a_slower_start_makes_callers_wait() -> None:
    def late(cold_start: float) -> float:
        traffic = Traffic(mean=PACE.most, hours=1.0, bursts=3, seed=1)
        settings = Settings(cold_start=cold_start, objective=0.5)
        return simulate(PACE, traffic, ServeDefault(0.7 * PACE.rows), settings).beyond

    assert late(5.0) < late(300.0)
