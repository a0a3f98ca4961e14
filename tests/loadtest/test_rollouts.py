"""Environments of policies in load tests."""

from __future__ import annotations

import pytest

from headwaiter.client.results import Action, Description, Model, Timing, Usage
from loadtest.traffic.rollouts import BreakoutRollout, CartPoleRollout, RandomWalkRollout, Rollout, rollout_for

ROLLOUTS = {
    "cartpole": (4, 2, CartPoleRollout),
    "breakout": (400, 3, BreakoutRollout),
    "other": (7, 2, RandomWalkRollout),
}


def _description(states: int, actions: int) -> Description:
    return Description(
        name="player",
        task="policy",
        version="1",
        family="zoo",
        precision="fp32",
        device="cpu",
        limits={},
        labels=(),
        languages=None,
        state_size=states,
        action_size=actions,
        action_kind="discrete",
        decoding=None,
        license="",
        source="",
        attribution="",
    )


def _action(number: int) -> Action:
    return Action(
        model=Model("player", "1"),
        usage=Usage(0, 0, 0),
        timing=Timing(0, 0, 0),
        discrete=number,
        continuous=None,
        scores=(),
    )


@pytest.mark.parametrize(("states", "actions", "rollout_class"), ROLLOUTS.values(), ids=ROLLOUTS)
def test_rollout_for_selects_deterministic_environment(states: int, actions: int, rollout_class: type[Rollout]) -> None:
    rollout, repeated = (rollout_for(_description(states, actions), seed=3) for _ in range(2))
    assert type(rollout) is rollout_class
    state = rollout.reset()
    assert len(state) == states
    assert state == repeated.reset()
    action = _action(1)
    state, reward, over = rollout.step(action)
    assert (state, reward, over) == repeated.step(action)
    assert len(state) == states
