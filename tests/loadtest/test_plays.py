"""What policies play in load tests."""

from __future__ import annotations

import pytest

from loadtest.traffic.plays import Bricks, CartPole, Drift, Play, play_for
from service.client.results import Action, Description, Model, Timing, Usage

PLAYS = {
    "the zoo's": (4, 2, CartPole),
    "the menu's": (400, 3, Bricks),
    "anyone's": (7, 2, Drift),
}


def _about(states: int, actions: int) -> Description:
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


def _move(number: int) -> Action:
    return Action(
        model=Model("player", "1"),
        usage=Usage(0, 0, 0),
        timing=Timing(0, 0, 0),
        discrete=number,
        continuous=None,
        scores=(),
    )


@pytest.mark.parametrize(("states", "actions", "kind"), PLAYS.values(), ids=PLAYS)
def test_a_policy_plays_what_it_has_learnt(states: int, actions: int, kind: type[Play]) -> None:
    play, again = (play_for(_about(states, actions), seed=3) for _ in range(2))
    assert type(play) is kind
    state = play.reset()
    assert len(state) == states
    assert state == again.reset()
    move = _move(1)
    state, reward, ended = play.step(move)
    assert (state, reward, ended) == again.step(move)
    assert len(state) == states
