"""Capacity simulation, compared with results of queueing theory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from headwaiter.serving.autoscaling import ESTIMATED_WAIT, SCALE_UP_DELAY_SECONDS, UTILISATION
from loadtest.capacity.autoscaling_policies import (
    PolicyInput,
    RayServePolicy,
    ReplicaLoad,
    ServeDefaultPolicy,
    UnknownPolicyError,
    headwaiter_policy,
    load_policy,
)
from loadtest.capacity.fleet_simulation import FleetSettings, Traffic, simulate
from loadtest.capacity.latency_curve import (
    Fit,
    InvalidRampError,
    MeasuredCurve,
    describe_agreement,
    max_rate_within,
    simulated,
)
from loadtest.capacity.replica_simulation import Replica, ReplicaProfile
from loadtest.capacity.sizing import size_fleet

PROFILE = ReplicaProfile(slots=16, base_seconds=0.1, contention=0.15, spread=0.5)


def responses(profile: ReplicaProfile, rate: float, calls: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    replica, seconds = Replica(profile), []
    for now in np.cumsum(rng.exponential(1 / rate, calls)).tolist():
        seconds += [call.seconds for call in replica.advance_to(now)]
        assert replica.submit(now, profile.work(rng.standard_normal()))
    return np.array(seconds + [call.seconds for call in replica.advance_to(float("inf"))])


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize("spread", [0.1, 0.8])
def test_replica_full_contention_matches_processor_sharing(load: float, spread: float) -> None:
    """Under processor sharing the mean response time is E[S] / (1 - load) for any distribution of S."""
    profile = ReplicaProfile(slots=10_000, base_seconds=0.1, contention=1.0, spread=spread)
    assert responses(profile, load / 0.1, 40_000).mean() == pytest.approx(0.1 / (1 - load), rel=0.08)


def test_replica_without_contention_has_constant_response_time() -> None:
    profile = ReplicaProfile(slots=10_000, base_seconds=0.1, contention=0.0, spread=0.5)
    assert responses(profile, 500, 5_000).mean() == pytest.approx(0.1, rel=0.03)


def test_replica_single_slot_matches_pollaczek_khinchine() -> None:
    profile = ReplicaProfile(slots=1, base_seconds=0.1, contention=0.0, spread=0.5, max_wait=1e9)
    load, second_moment = 0.6, 0.1**2 * np.exp(0.5**2)
    expected = 0.1 + load / 0.1 * second_moment / (2 * (1 - load))
    assert responses(profile, load / 0.1, 40_000).mean() == pytest.approx(expected, rel=0.08)


def test_simulated_overload_rejects_excess_and_bounds_latency() -> None:
    point = simulated(PROFILE, 3 * PROFILE.max_rate)
    assert point.rejected == pytest.approx(2 / 3, abs=0.05)
    assert point.p95 < PROFILE.max_wait + 16 * PROFILE.seconds_per_unit(16)
    assert simulated(PROFILE, 0.3 * PROFILE.max_rate).rejected == 0


def test_max_rate_within_objective_is_tight() -> None:
    rate = max_rate_within(PROFILE, 0.4, 0.01)
    assert 0 < rate < PROFILE.max_rate
    assert simulated(PROFILE, 0.98 * rate).p95 <= 0.4 < simulated(PROFILE, 1.05 * rate).p95


def write_ramp(file: Path, profile: ReplicaProfile, rates: list[float], **changes: Any) -> Path:
    """Write the ramp of a service that behaves exactly like the simulation."""
    points = [simulated(profile, rate, 20.0) for rate in rates]
    phases = [
        {
            "phase": {"rate": point.rate, "seconds": point.seconds},
            "latency": {"count": 1000, "p50": 1e3 * point.p50, "p95": 1e3 * point.p95},
            "call_counts": {"sent": 1000, "rejected": round(1000 * point.rejected)},
        }
        for point in points
    ]
    content = {
        "scenario": "ramp",
        "models": [{"name": "opus"}],
        "objective": {"p95_ms": 400.0, "errors": 0.01},
        "verdict": {"rate": rates[-2]},
        "phases": phases,
        "seconds": [{"slots": profile.slots, "slots_in_use": 1}],
    }
    file.write_text(json.dumps(content | changes))
    return file


def test_fit_recovers_profile_of_simulated_curve(tmp_path: Path) -> None:
    rates = [
        0.1 * PROFILE.max_rate,
        0.3 * PROFILE.max_rate,
        0.5 * PROFILE.max_rate,
        0.7 * PROFILE.max_rate,
        0.85 * PROFILE.max_rate,
    ]
    fit = Fit(MeasuredCurve(write_ramp(tmp_path / "ramp.json", PROFILE, rates)), PROFILE.max_wait)
    assert fit.profile.base_seconds == pytest.approx(PROFILE.base_seconds, rel=0.1)
    assert fit.profile.max_rate == pytest.approx(PROFILE.max_rate, rel=0.1)
    comparisons = fit.comparisons()
    assert [comparison.fitted for comparison in comparisons] == [True, False, True, False, True]
    assert all(0.85 < comparison.p95_ratio < 1.15 for comparison in comparisons)
    assert "at 2 points not used for fitting" in describe_agreement(comparisons)


BAD_RAMPS = [
    ({"scenario": "steady"}, "is not a ramp"),
    ({"phases": []}, "has 0 phases .* the minimum is 3"),
    ({"seconds": [{"slots": None, "slots_in_use": None}]}, "has no slots in use"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_RAMPS)
def test_measured_curve_invalid_file_raises(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = write_ramp(tmp_path / "ramp.json", PROFILE, [10, 20, 30], **changes)
    with pytest.raises(InvalidRampError, match=message):
        MeasuredCurve(file)
    with pytest.raises(InvalidRampError, match="does not exist"):
        MeasuredCurve(tmp_path / "none.json")


def test_size_fleet_replicas_and_cost() -> None:
    fleet = size_fleet(100, 30, spare=1, price=0.5)
    assert (fleet.replicas, fleet.cost) == (5, 5 * 730 * 0.5)
    assert fleet.utilisation == pytest.approx(100 / 150)
    assert size_fleet(100, 30).replicas == 4
    assert size_fleet(100, 30).cost is None


def test_serve_default_policy_applies_delays() -> None:
    policy, busy = ServeDefaultPolicy(10, upscale_delay=20, downscale_delay=60), [ReplicaLoad(0.9, 0, 30)] * 2
    assert [policy.desired_replicas(PolicyInput(now, 2, busy)) for now in (0, 10, 20)] == [2, 2, 6]
    idle = [ReplicaLoad(0.0, 0, 1)] * 6
    assert [policy.desired_replicas(PolicyInput(now, 6, idle)) for now in (30, 60, 90)] == [6, 6, 1]


def test_ray_serve_policy_receives_serve_context_and_applies_delay() -> None:
    contexts: list[SimpleNamespace] = []

    def decide(context: SimpleNamespace) -> tuple[int, dict[str, Any]]:
        contexts.append(context)
        return context.target_num_replicas + 1, {"decisions": len(contexts)}

    policy = RayServePolicy("one more", decide, upscale_delay=4.0)
    assert policy.desired_replicas(PolicyInput(1.0, 2, [ReplicaLoad(0.5, 0.1, 4), ReplicaLoad(0.7, 0.0, 6)])) == 2, (
        "the upscale delay has not passed"
    )
    assert policy.desired_replicas(PolicyInput(5.0, 2, [])) == 3
    assert policy.desired_replicas(PolicyInput(7.0, 3, [])) == 3
    assert contexts[0].aggregated_metrics == {UTILISATION: {"0": 0.5, "1": 0.7}, ESTIMATED_WAIT: {"0": 0.1, "1": 0.0}}
    assert contexts[0].total_num_requests == 10
    assert (contexts[1].policy_state, contexts[1].last_scale_up_time) == ({"decisions": 1}, None)
    assert (contexts[2].policy_state, contexts[2].last_scale_up_time) == ({"decisions": 2}, 5.0)
    with pytest.raises(UnknownPolicyError, match="MODULE:CLASS"):
        load_policy("missing_module:MissingClass")


def test_headwaiter_policy_scales_up_after_delay() -> None:
    policy, busy = headwaiter_policy(0.5, max_wait=2.0, scale_down_delay=300.0), [ReplicaLoad(1.0, 0.0, 64)]
    assert [policy.desired_replicas(PolicyInput(now, 1, busy)) for now in (0.0, 2.0, 2.0 + SCALE_UP_DELAY_SECONDS)] == [
        1,
        1,
        2,
    ]


@pytest.mark.parametrize("cold_start", [5.0, 120.0])
def test_simulate_day_totals_are_consistent(cold_start: float) -> None:
    traffic = Traffic(mean=0.5 * PROFILE.max_rate, hours=1.0, bursts=2, seed=1)
    day = simulate(
        PROFILE, traffic, ServeDefaultPolicy(0.7 * PROFILE.slots), FleetSettings(cold_start=cold_start, objective=0.5)
    )
    assert day.calls == sum(1 for _ in traffic.arrivals())
    assert sum(minute.rejected for minute in day.minutes) <= day.rejected <= day.calls
    assert 1.0 <= day.replica_hours <= day.peak_replicas
    assert 0 < day.utilisation < 1


def test_simulate_longer_cold_start_increases_late_requests() -> None:
    def late_share(cold_start: float) -> float:
        traffic = Traffic(mean=PROFILE.max_rate, hours=1.0, bursts=3, seed=1)
        settings = FleetSettings(cold_start=cold_start, objective=0.5)
        return simulate(PROFILE, traffic, ServeDefaultPolicy(0.7 * PROFILE.slots), settings).late_or_rejected

    assert late_share(5.0) < late_share(300.0)
