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

from service import open_model
from service.load import LoadGauge
from service.scaling import SHARE, WAIT, Load, RowsPolicy, replicas_wanted
from tests.conftest import Packages

TARGET, PATIENCE, SHRINK = 0.5, 1.0, 60.0
POLICY = RowsPolicy(TARGET, PATIENCE, SHRINK)
MODEL = DeploymentID("model", "texts")
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def context(now: float, there: int, loads: list[Load], **changes: Any) -> AutoscalingContext:
    replicas = [ReplicaID(str(index), MODEL) for index in range(len(loads))]
    told = {
        SHARE: {each: load.share for each, load in zip(replicas, loads, strict=True)},
        WAIT: {each: load.wait for each, load in zip(replicas, loads, strict=True)},
    }
    given: dict[str, Any] = {
        "deployment_id": MODEL,
        "deployment_name": MODEL.name,
        "app_name": MODEL.app_name,
        "current_num_replicas": len(replicas),
        "target_num_replicas": there,
        "running_replicas": replicas,
        "total_num_requests": 0.0,
        "total_queued_requests": 0.0,
        "aggregated_metrics": told,
        "raw_metrics": {},
        "capacity_adjusted_min_replicas": 0,
        "capacity_adjusted_max_replicas": 100,
        "policy_state": {},
        "last_scale_up_time": None,
        "last_scale_down_time": None,
        "current_time": now,
        "config": AutoscalingConfig(min_replicas=0, max_replicas=100),
    }
    return AutoscalingContext(**(given | changes))


@pytest.mark.parametrize(
    ("loads", "wanted"),
    [
        ([], 0),
        ([Load(0, 0)], 0),  # nothing to do
        ([Load(0.01, 0)], 1),
        ([Load(0.5, 0)], 1),  # just as it should be
        ([Load(0.51, 0)], 2),
        ([Load(0.5, 0), Load(0.5, 0)], 2),
        ([Load(0.1, 0), Load(0.1, 0), Load(0.2, 0)], 1),
        ([Load(1, 0)], 2),  # full, and nobody waits
        ([Load(1, 0.5)], 3),  # full, and a newcomer would wait for half of what he may
        ([Load(1, 3600)], 4),  # a very long line counts as that of one more replica
        ([Load(1, 3600), Load(0, 0)], 4),
    ],
)
def test_replicas_wanted(loads: list[Load], wanted: int) -> None:
    assert replicas_wanted(loads, TARGET, PATIENCE) == wanted


@given(SHARES, st.data())
def test_more_load_never_asks_for_fewer(shares: list[float], data: st.DataObject) -> None:
    loads = [Load(share, data.draw(st.floats(0, 5))) for share in shares]
    index = data.draw(st.integers(0, len(loads) - 1))
    heavier = list(loads)
    heavier[index] = Load(loads[index].share, loads[index].wait + data.draw(st.floats(0, 5)))
    few, many = (replicas_wanted(each, TARGET, PATIENCE) for each in (loads, heavier))
    assert few <= many <= math.ceil(2 * len(loads) / TARGET)


@given(st.lists(st.tuples(st.floats(0.1, 30), st.integers(0, 8)), max_size=40), st.integers(1, 8))
def test_it_shrinks_to_the_most_that_was_wanted_of_late_and_grows_at_once(
    moments: list[tuple[float, int]], begin: int
) -> None:
    """Beside a plain memory of everything."""
    now, there = 0.0, begin
    memory = [(now, begin)]
    _, state = POLICY(context(now, there, []))
    for seconds, wanted in moments:
        now += seconds
        memory.append((now, wanted))
        answer, state = POLICY(context(now, there, [Load(TARGET, 0)] * wanted or [Load(0, 0)], policy_state=state))
        recent = max(each for when, each in memory if when > now - SHRINK)
        assert answer == max(wanted, min(there, recent))
        assert len(state["wishes"]) <= 9
        there = answer


@settings(max_examples=30)
@given(st.floats(0.01, 10))
def test_a_steady_load_comes_to_rest(work: float) -> None:
    """Work enough for so many replicas, spread over those there are: what is too much for them waits."""
    now, there, state = 0.0, 1, {}
    seen = []
    for _ in range(200):
        now += 1.0
        share = min(1.0, work / there)
        wait = PATIENCE if work > there else 0.0
        there, state = POLICY(context(now, there, [Load(share, wait)] * there, policy_state=state))
        seen.append(there)
    enough = math.ceil(work / TARGET - 1e-9)
    assert set(seen[-100:]) == {enough}
    assert max(seen) <= max(1, 2 * enough)


def test_without_reports_it_stays_as_it_is() -> None:
    assert POLICY(context(0.0, 3, [], aggregated_metrics=None))[0] == 3
    assert POLICY(context(0.0, 3, []))[0] == 3


def test_a_call_under_way_keeps_the_last_one() -> None:
    idle = [Load(0, 0)]
    long_ago = {"wishes": [(0.0, 0)]}
    assert POLICY(context(1000.0, 1, idle, policy_state=long_ago, total_num_requests=1.0))[0] == 1
    assert POLICY(context(1000.0, 1, idle, policy_state=long_ago))[0] == 0


def test_what_has_just_begun_stays_for_a_while() -> None:
    """Also where the policy remembers only the idle time before it."""
    idle, state = [Load(0, 0)], {"wishes": [(900.0, 0)]}
    assert POLICY(context(1000.0, 1, idle, policy_state=state, last_scale_up_time=950.0))[0] == 1
    assert POLICY(context(1010.0, 1, idle, policy_state=state, last_scale_up_time=950.0))[0] == 0


def test_as_ray_runs_it() -> None:
    """Carried by value, made once, within Serve's own bounds and delays."""
    config = AutoscalingConfig(
        min_replicas=0,
        max_replicas=3,
        upscale_delay_s=0,
        downscale_delay_s=0,
        policy={
            "policy_function": "service.scaling:RowsPolicy",
            "policy_kwargs": {"target": TARGET, "patience_seconds": PATIENCE, "shrink_seconds": SHRINK},
        },
    )
    policy = _apply_autoscaling_config(_resolve_policy_callable(config.policy))
    now = time.time()
    assert policy(context(now, 1, [Load(1, 0)], config=config))[0] == 2
    assert policy(context(now, 2, [Load(0, 0)] * 2, config=config, policy_state={"wishes": [(now - 1, 1)]}))[0] == 1
    assert policy(context(now, 0, [], config=config, total_num_requests=1.0))[0] == 1  # the first call after a sleep


def test_a_model_without_rows_tells_how_much_of_the_time_it_worked(packages: Packages) -> None:
    with open_model(packages("bert", "fp32").package.folder, threads=1) as model:
        gauge = LoadGauge(model.engine)
        assert gauge.read() == {SHARE: 0.0, WAIT: 0.0}
        model.classify(text=["ab cd"] * 50)
        assert 0 < gauge.read()[SHARE] <= 1
        assert gauge.read()[SHARE] == 0


def test_a_model_with_rows_tells_how_many_are_in_use(packages: Packages) -> None:
    with open_model(packages("decision_transformer", "fp32").package.folder, threads=1, rows=4) as model:
        gauge = LoadGauge(model.engine)
        state = [0.0] * model.manifest.policy.state_size
        with model.episode(target_return=1.0) as one, model.episode(target_return=1.0) as other:
            one.step(state)
            other.step(state)
            assert gauge.read()[SHARE] == 0.5
