"""Breakout as players of mixed skill play it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from export.menu.breakout import MOVES, STATE, TIMESTEPS, Breakout, sensible
from export.zoo.data.base import Data
from export.zoo.data.episodes import Played, Player, returns_of, windows

EPISODES = 100  # that a policy is measured by
_SKILLS = (0.5, 1.0)  # how often a player moves sensibly rather than at random


class WatchedBreakout(Data):
    """Players of mixed skill: each follows the ball as often as its skill says, and moves at random otherwise."""

    name = "MinAtar Breakout, watched"
    metric = "mean return"
    chance = 0.5
    asked = 40.0

    def __init__(self, episodes: int = 3000, context: int = 8) -> None:
        self._count, self.context = episodes, context

    def sizes(self) -> dict[str, Any]:
        return {"state": int(np.prod(STATE)), "actions": len(MOVES), "timesteps": TIMESTEPS, "context": self.context}

    @cached_property
    def behaviour(self) -> list[Played]:
        rng, player = np.random.default_rng(0), Player(Breakout())
        return [_played(player, rng, float(rng.uniform(*_SKILLS))) for _ in range(self._count)]

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        """Every moment of the data is as likely as any other."""
        lengths = self._lengths
        chosen = rng.choice(len(lengths), batch, p=lengths / lengths.sum())
        begins = rng.integers(0, lengths[chosen])
        drawn = windows([self.behaviour[index] for index in chosen], begins.tolist(), self.context, len(MOVES))
        logits = model(drawn.moments)
        return functional.cross_entropy(logits.flatten(0, 1), drawn.actions.flatten(), ignore_index=-1)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array([episode.length for episode in self.behaviour])

    def measure(self, served: Any, most: int | None = None) -> float:
        return reached(served, self.asked, most or EPISODES)


def reached(served: Any, target: float, episodes: int = EPISODES) -> float:
    """The mean return of a served policy when so much is asked for."""
    return float(np.mean(returns_of(served, Breakout(), episodes, target)))


def _played(player: Player, rng: np.random.Generator, skill: float) -> Played:
    while True:
        state = player.begun(rng).states[-1]
        move = sensible(state) if rng.random() < skill else int(rng.integers(len(MOVES)))
        if (played := player.step(move)) is not None:
            return played
