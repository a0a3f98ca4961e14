from __future__ import annotations

import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from headwaiter import open_model
from headwaiter.serving.autoscaling import ESTIMATED_WAIT, UTILISATION, ReplicaLoad, UtilisationPolicy, desired_replicas
from headwaiter.serving.replica_load import LoadGauge
from tests.conftest import Packages

TARGET, MAX_WAIT, SCALE_DOWN_DELAY = 0.5, 1.0, 60.0
POLICY = UtilisationPolicy(TARGET, MAX_WAIT, SCALE_DOWN_DELAY)
MODEL = DeploymentID("model", "texts")
UTILISATIONS = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def context(now: float, target_replicas: int, loads: list[ReplicaLoad], **changes: Any) -> AutoscalingContext:
    replicas = [ReplicaID(str(index), MODEL) for index in range(len(loads))]
    reports = {
        UTILISATION: {replica: load.utilisation for replica, load in zip(replicas, loads, strict=True)},
        ESTIMATED_WAIT: {replica: load.estimated_wait for replica, load in zip(replicas, loads, strict=True)},
    }
    fields: dict[str, Any] = {
        "deployment_id": MODEL,
        "deployment_name": MODEL.name,
        "app_name": MODEL.app_name,
        "current_num_replicas": len(replicas),
        "target_num_replicas": target_replicas,
        "running_replicas": replicas,
        "total_num_requests": 0.0,
        "total_queued_requests": 0.0,
        "aggregated_metrics": reports,
        "raw_metrics": {},
        "capacity_adjusted_min_replicas": 0,
        "capacity_adjusted_max_replicas": 100,
        "policy_state": {},
        "last_scale_up_time": None,
        "last_scale_down_time": None,
        "current_time": now,
        "config": AutoscalingConfig(min_replicas=0, max_replicas=100),
    }
    return AutoscalingContext(**(fields | changes))


@pytest.mark.parametrize(
    ("loads", "replicas"),
    [
        ([], 0),
        ([ReplicaLoad(0, 0)], 0),  # idle
        ([ReplicaLoad(0.01, 0)], 1),
        ([ReplicaLoad(0.5, 0)], 1),  # exactly at the target
        ([ReplicaLoad(0.51, 0)], 2),
        ([ReplicaLoad(0.5, 0), ReplicaLoad(0.5, 0)], 2),
        ([ReplicaLoad(0.1, 0), ReplicaLoad(0.1, 0), ReplicaLoad(0.2, 0)], 1),
        ([ReplicaLoad(1, 0)], 2),  # fully used, empty queue
        ([ReplicaLoad(1, 0.5)], 3),  # fully used, and half of the maximum wait
        ([ReplicaLoad(1, 3600)], 4),  # the load of one replica is capped at 2
        ([ReplicaLoad(1, 3600), ReplicaLoad(0, 0)], 4),
    ],
)
def test_desired_replicas(loads: list[ReplicaLoad], replicas: int) -> None:
    assert desired_replicas(loads, TARGET, MAX_WAIT) == replicas


@given(UTILISATIONS, st.data())
def test_desired_replicas_is_monotonic_in_load(utilisations: list[float], data: st.DataObject) -> None:
    loads = [ReplicaLoad(utilisation, data.draw(st.floats(0, 5))) for utilisation in utilisations]
    index = data.draw(st.integers(0, len(loads) - 1))
    heavier = list(loads)
    heavier[index] = ReplicaLoad(loads[index].utilisation, loads[index].estimated_wait + data.draw(st.floats(0, 5)))
    before, after = desired_replicas(loads, TARGET, MAX_WAIT), desired_replicas(heavier, TARGET, MAX_WAIT)
    assert before <= after <= math.ceil(2 * len(loads) / TARGET)


@given(st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 8)), max_size=40), st.integers(1, 8))
def test_policy_scales_up_at_once_and_down_to_window_maximum(steps: list[tuple[float, int]], initial: int) -> None:
    """Compared with a reference implementation that stores the full history."""
    now, current = 0.0, initial
    history = [(now, initial)]
    _, state = POLICY(context(now, current, []))
    for seconds, desired in steps:
        now += seconds
        history.append((now, desired))
        loads = [ReplicaLoad(TARGET, 0)] * desired or [ReplicaLoad(0, 0)]
        decision, state = POLICY(context(now, current, loads, policy_state=state))
        window_maximum = max(replicas for time, replicas in history if time > now - SCALE_DOWN_DELAY)
        assert decision == max(desired, min(current, window_maximum))
        assert len(state["targets"]) <= 9
        current = decision


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 10))
def test_policy_converges_under_constant_load(work: float) -> None:
    """`work` is in units of one replica and is spread evenly; work beyond capacity waits in the queue."""
    now, current, state = 0.0, 1, {}
    decisions = []
    for _ in range(200):
        now += 1.0
        utilisation = min(1.0, work / current)
        estimated_wait = MAX_WAIT if work > current else 0.0
        loads = [ReplicaLoad(utilisation, estimated_wait)] * current
        current, state = POLICY(context(now, current, loads, policy_state=state))
        decisions.append(current)
    expected = math.ceil(work / TARGET - 1e-9)
    assert set(decisions[-100:]) == {expected}
    assert max(decisions) <= max(1, 2 * expected)


def test_policy_without_reports_keeps_current_replicas() -> None:
    assert POLICY(context(0.0, 3, [], aggregated_metrics=None))[0] == 3
    assert POLICY(context(0.0, 3, []))[0] == 3


def test_policy_ongoing_request_keeps_last_replica() -> None:
    idle = [ReplicaLoad(0, 0)]
    state = {"targets": [(0.0, 0)]}
    assert POLICY(context(1000.0, 1, idle, policy_state=state, total_num_requests=1.0))[0] == 1
    assert POLICY(context(1000.0, 1, idle, policy_state=state))[0] == 0


def test_policy_after_scale_up_waits_for_scale_down_delay() -> None:
    """Even if the recorded targets contain only the idle time before the scale-up."""
    idle, state = [ReplicaLoad(0, 0)], {"targets": [(900.0, 0)]}
    assert POLICY(context(1000.0, 1, idle, policy_state=state, last_scale_up_time=950.0))[0] == 1
    assert POLICY(context(1010.0, 1, idle, policy_state=state, last_scale_up_time=950.0))[0] == 0


def test_policy_in_ray_serve_respects_bounds() -> None:
    """Resolved and wrapped as Serve's controller does it."""
    config = AutoscalingConfig(
        min_replicas=0,
        max_replicas=3,
        upscale_delay_s=0,
        downscale_delay_s=0,
        policy={
            "policy_function": "headwaiter.serving.autoscaling:UtilisationPolicy",
            "policy_kwargs": {
                "target": TARGET,
                "max_wait_seconds": MAX_WAIT,
                "scale_down_delay_seconds": SCALE_DOWN_DELAY,
            },
        },
    )
    policy = _apply_autoscaling_config(_resolve_policy_callable(config.policy))
    now = time.time()
    assert policy(context(now, 1, [ReplicaLoad(1, 0)], config=config))[0] == 2
    assert (
        policy(context(now, 2, [ReplicaLoad(0, 0)] * 2, config=config, policy_state={"targets": [(now - 1, 1)]}))[0]
        == 1
    )
    assert (
        policy(context(now, 0, [], config=config, total_num_requests=1.0))[0] == 1
    )  # first request after scaling to zero


def test_load_gauge_without_slots_reports_busy_time(packages: Packages) -> None:
    with open_model(packages("bert", "fp32").package.folder, threads=1) as model:
        gauge = LoadGauge(model.engine)
        assert gauge.read() == {UTILISATION: 0.0, ESTIMATED_WAIT: 0.0}
        model.classify(text=["ab cd"] * 50)
        assert 0 < gauge.read()[UTILISATION] <= 1
        assert gauge.read()[UTILISATION] == 0


def test_load_gauge_with_slots_reports_slots_in_use(packages: Packages) -> None:
    with open_model(packages("decision_transformer", "fp32").package.folder, threads=1, max_sequences=4) as model:
        gauge = LoadGauge(model.engine)
        state = [0.0] * model.manifest.policy.state_size
        with model.episode(target_return=1.0) as first, model.episode(target_return=1.0) as second:
            first.step(state)
            second.step(state)
            assert gauge.read()[UTILISATION] == 0.5
