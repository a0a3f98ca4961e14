"""What a policy plays: an environment that answers its actions, for as many steps as the play has."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from service.client.results import Action, Description

_USUAL_STEPS, _MOST_STEPS = 20, 120
_CARTPOLE_RETURN, _BREAKOUT_RETURN = 200.0, 40.0


class Play(ABC):
    """One run; `seed` decides its length and its course."""

    target_return = 1.0

    def __init__(self, about: Description, seed: int) -> None:
        self.about, self.seed = about, seed
        drawn = int(random.Random(seed).lognormvariate(0, 0.7) * _USUAL_STEPS) + 2
        self.most_steps = min(drawn, about.limits.get("timesteps", _MOST_STEPS), _MOST_STEPS)

    @abstractmethod
    def reset(self) -> list[float]: ...

    @abstractmethod
    def step(self, action: Action) -> tuple[list[float], float, bool]:
        """The next state, the reward, and whether it is over."""


class Game(Play):
    """An environment as gymnasium's are called."""

    @abstractmethod
    def make(self) -> Any: ...

    def reset(self) -> list[float]:
        self._environment = self.make()
        state, _ = self._environment.reset(seed=self.seed)
        return np.asarray(state, float).tolist()

    def step(self, action: Action) -> tuple[list[float], float, bool]:
        state, reward, ended, cut, _ = self._environment.step(action.discrete)
        return np.asarray(state, float).tolist(), float(reward), ended or cut


class CartPole(Game):
    """The zoo's Decision Transformer has learnt it."""

    target_return = _CARTPOLE_RETURN

    def make(self) -> Any:
        import gymnasium

        return gymnasium.make("CartPole-v1")


class Bricks(Game):
    """The menu's `breakout-dt` has learnt it."""

    target_return = _BREAKOUT_RETURN

    def make(self) -> Any:
        from export.menu.breakout import Breakout

        return Breakout()


class Drift(Play):
    """For policies of environments that are not at hand: states that drift, pushed by what was done."""

    def reset(self) -> list[float]:
        assert self.about.state_size is not None
        self._rng = np.random.default_rng(self.seed)
        self._state = self._rng.standard_normal(self.about.state_size)
        return self._state.tolist()

    def step(self, action: Action) -> tuple[list[float], float, bool]:
        pushed = (
            float(action.discrete) if action.continuous is None and action.discrete else sum(action.continuous or ())
        )
        self._state = 0.9 * self._state + 0.3 * self._rng.standard_normal(self._state.shape) + 0.01 * pushed
        return self._state.tolist(), float(np.clip(pushed, -1, 1)) * 0.01, False


_PLAYS: dict[tuple[int | None, int | None, str | None], Callable[[Description, int], Play]] = {
    (4, 2, "discrete"): CartPole,
    (400, 3, "discrete"): Bricks,
}
"""By the sizes of states and actions, and the kind of these."""


def play_for(about: Description, seed: int) -> Play:
    return _PLAYS.get((about.state_size, about.action_size, about.action_kind), Drift)(about, seed)
