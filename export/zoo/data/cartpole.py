"""A pole on a cart, kept upright by pushing left or right: one point a step, 500 at most."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional

from export.zoo.data.base import Data
from export.zoo.data.episodes import Played, Player, returns_of, returns_while_learning, windows
from export.zoo.model import Actor

ACTIONS, TIMESTEPS = 2, 500
_BALANCING = np.array([0.05, 0.1, 1.0, 0.5])  # push right where this of position, angle and their speeds is positive
_SKILLS = (0.3, 0.85)  # how often a controller does the right thing: worse than random to decent
_HELD_OUT, _GLIMPSED = 20, 5


def cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


class CartPole(Data):
    """Behaviour of mixed quality: every episode has a controller of its own skill, and most fall early."""

    name = "cartpole"
    learners = (Actor,)
    metric = "mean return"
    chance = 22.0

    def __init__(self, episodes: int = 500, context: int = 20) -> None:
        self._count, self.context = episodes, context

    def sizes(self) -> dict[str, Any]:
        return {"state": 4, "actions": ACTIONS, "timesteps": TIMESTEPS, "context": self.context}

    @cached_property
    def behaviour(self) -> list[Played]:
        rng, player = np.random.default_rng(0), Player(cartpole())
        return [_controlled(player, rng, float(rng.uniform(*_SKILLS))) for _ in range(self._count)]

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        """Every moment of the data is as likely as any other, so long episodes are drawn more often."""
        lengths = np.array([episode.length for episode in self.behaviour])
        chosen = rng.choice(len(lengths), batch, p=lengths / lengths.sum())
        begins = rng.integers(0, lengths[chosen])
        drawn = windows([self.behaviour[index] for index in chosen], begins.tolist(), self.context, ACTIONS)
        logits = model(drawn.moments)
        return functional.cross_entropy(logits.flatten(0, 1), drawn.actions.flatten(), ignore_index=-1)

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        environments = [cartpole() for _ in range(_GLIMPSED)]
        return float(np.mean(returns_while_learning(model, environments, rng, TIMESTEPS)))

    def measure(self, served: Any, most: int | None = None) -> float:
        return self.reached(served, TIMESTEPS, most)

    def reached(self, served: Any, target: float, most: int | None = None) -> float:
        """The mean return when so much is asked for."""
        return float(np.mean(returns_of(served, cartpole(), most or _HELD_OUT, target)))


def _controlled(player: Player, rng: np.random.Generator, skill: float) -> Played:
    while True:
        right = _BALANCING @ player.begun(rng).states[-1] > 0
        if (played := player.step(int(right == (rng.random() < skill)))) is not None:
            return played
