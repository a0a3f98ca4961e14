"""Environments that policies act in during load tests."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from headwaiter.client.results import Action, Description

_MEDIAN_STEPS, _MAX_STEPS = 20, 120
_CARTPOLE_RETURN, _BREAKOUT_RETURN = 200.0, 40.0


class Rollout(ABC):
    """One episode; `seed` determines its length and its course."""

    target_return = 1.0

    def __init__(self, description: Description, seed: int) -> None:
        self.description, self.seed = description, seed
        steps = int(random.Random(seed).lognormvariate(0, 0.7) * _MEDIAN_STEPS) + 2
        self.max_steps = min(steps, description.limits.get("timesteps", _MAX_STEPS), _MAX_STEPS)

    @abstractmethod
    def reset(self) -> list[float]: ...

    @abstractmethod
    def step(self, action: Action) -> tuple[list[float], float, bool]:
        """Return the next state, the reward, and whether the episode is over."""


class GymRollout(Rollout):
    """An environment with gymnasium's interface."""

    @abstractmethod
    def make(self) -> Any: ...

    def reset(self) -> list[float]:
        self._environment = self.make()
        state, _ = self._environment.reset(seed=self.seed)
        return np.asarray(state, float).tolist()

    def step(self, action: Action) -> tuple[list[float], float, bool]:
        state, reward, terminated, truncated, _ = self._environment.step(action.discrete)
        return np.asarray(state, float).tolist(), float(reward), terminated or truncated


class CartPoleRollout(GymRollout):
    """The environment that the zoo's Decision Transformer is trained on."""

    target_return = _CARTPOLE_RETURN

    def make(self) -> Any:
        import gymnasium

        return gymnasium.make("CartPole-v1")


class BreakoutRollout(GymRollout):
    """The environment that the menu's `breakout-dt` is trained on."""

    target_return = _BREAKOUT_RETURN

    def make(self) -> Any:
        from headwaiter_export.menu.breakout_environment import Breakout

        return Breakout()


class RandomWalkRollout(Rollout):
    """Fallback for policies of other environments: a random walk that the actions push."""

    def reset(self) -> list[float]:
        assert self.description.state_size is not None
        self._rng = np.random.default_rng(self.seed)
        self._state = self._rng.standard_normal(self.description.state_size)
        return self._state.tolist()

    def step(self, action: Action) -> tuple[list[float], float, bool]:
        push = float(action.discrete) if action.continuous is None and action.discrete else sum(action.continuous or ())
        self._state = 0.9 * self._state + 0.3 * self._rng.standard_normal(self._state.shape) + 0.01 * push
        return self._state.tolist(), float(np.clip(push, -1, 1)) * 0.01, False


_ROLLOUTS: dict[tuple[int | None, int | None, str | None], Callable[[Description, int], Rollout]] = {
    (4, 2, "discrete"): CartPoleRollout,
    (400, 3, "discrete"): BreakoutRollout,
}
"""By state size, action size and kind of action."""


def rollout_for(description: Description, seed: int) -> Rollout:
    return _ROLLOUTS.get((description.state_size, description.action_size, description.action_kind), RandomWalkRollout)(
        description, seed
    )
