"""The cart and its pole with their speeds hidden: where to push follows only from what was seen before."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from export.zoo.data.base import Data
from export.zoo.data.cartpole import ACTIONS, TIMESTEPS, cartpole
from export.zoo.data.episodes import Played, Player, Windows, chosen_now, returns_of, returns_while_learning, windows
from export.zoo.model import Actor, Valuer

_UNITS = (0.3, 0.026)  # of position and angle, an eighth of those that end the game: steps of a moment are small
_HELD_OUT, _GLIMPSED = 20, 20
_FIRST, _MOST = 50, 3000  # episodes that are played before learning begins, and that are kept
_EXPLORING = (1.0, 0.05)  # share of random actions, at the beginning and at the end of exploring


def blind_cartpole() -> Any:
    """Leaves the position of the cart and the angle of the pole."""
    from gymnasium.wrappers import TransformObservation

    return TransformObservation(cartpole(), lambda seen: seen[[0, 2]], None)


class BlindCartPole(Data):
    """Learned by playing: double Q-learning (van Hasselt et al. 2015) from a replay of episodes. What plays, what is
    looked ahead with and what is kept is a slow average of the model: it chooses more steadily than the model itself.

    The environments, the replay and the average are this object's. A training that is taken up again goes on with its
    weights, but fills the replay and explores anew, so it does not end with the same weights as one that was never
    interrupted.
    """

    name = "blind-cartpole"
    learners = (Valuer,)
    metric = "mean return"
    chance = 22.0
    keeps_best = True

    def __init__(
        self,
        context: int = 16,
        players: int = 32,
        exploring: int = 1500,  # steps of learning, until nearly all actions are the model's
        discount: float = 0.98,
        trace: float = 0.9,  # how much of what followed counts, as against what was expected of it
        following: float = 0.01,  # how far the average moves towards the model at each step
    ) -> None:
        self.context, self._exploring = context, exploring
        self._discount, self._trace, self._following = discount, trace, following
        self._players = [Player(blind_cartpole()) for _ in range(players)]
        self._replay: deque[Played] = deque(maxlen=_MOST)
        self._average: Actor | None = None
        self._steps = 0

    def sizes(self) -> dict[str, Any]:
        return {
            "state": len(_UNITS),
            "units": _UNITS,
            "actions": ACTIONS,
            "timesteps": TIMESTEPS,
            "context": self.context,
        }

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        """Of the values at every moment of the windows drawn, not of the last alone."""
        average = self._followed(model)
        while len(self._replay) < _FIRST:
            self._play(average, rng, randomly=1.0)
        done = min(1.0, self._steps / self._exploring)
        self._play(average, rng, randomly=float(np.interp(done, (0, 1), _EXPLORING)))
        self._steps += 1
        drawn = self._drawn(rng, batch)
        values: Tensor = model(drawn.moments)
        with torch.no_grad():
            best = values.argmax(2)
            ahead = average(drawn.moments).gather(2, best[:, :, None]).squeeze(2)
            known = _known(drawn)
            expected = self._expected(drawn, ahead, self._trace * ((drawn.actions == best) & known))
        taken = values.gather(2, drawn.actions[:, :, None].clamp(min=0)).squeeze(2)
        return functional.mse_loss(taken[known], expected[known])

    def learned(self, model: Any) -> Any:
        return self._average or model

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        environments = [blind_cartpole() for _ in range(_GLIMPSED)]
        return float(np.mean(returns_while_learning(model, environments, rng)))

    def measure(self, served: Any, most: int | None = None) -> float:
        return float(np.mean(returns_of(served, blind_cartpole(), most or _HELD_OUT, TIMESTEPS)))

    def _followed(self, model: Actor) -> Actor:
        if self._average is None:
            self._average = copy.deepcopy(model).requires_grad_(False)
        with torch.no_grad():
            for slow, fast in zip(self._average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, self._following)
        return self._average

    def _play(self, model: Actor, rng: np.random.Generator, *, randomly: float) -> None:
        """One step of every player."""
        best = chosen_now(model, [player.begun(rng) for player in self._players])
        for player, action in zip(self._players, best, strict=True):
            chosen = int(rng.integers(ACTIONS)) if rng.random() < randomly else action
            if (played := player.step(chosen)) is not None:
                self._replay.append(played)

    def _drawn(self, rng: np.random.Generator, batch: int) -> Windows:
        lengths = np.array([episode.length for episode in self._replay])
        chosen = rng.choice(len(lengths), batch, p=lengths / lengths.sum())
        begins = rng.integers(0, np.maximum(1, lengths[chosen] - self.context // 2))
        return windows([self._replay[index] for index in chosen], begins.tolist(), self.context, ACTIONS)

    def _expected(self, drawn: Windows, ahead: Tensor, trace: Tensor) -> Tensor:
        """What the actions taken were worth [rows, length]. A fall is worth -1 and all else nothing: discounted, this
        orders actions as a point for every step does, and values stay small. What followed counts for as long as it was
        what the model would do (Watkins 1989, Q(λ)): news of a fall reaches far back at once."""
        expected = torch.full_like(ahead, -1.0)
        for moment in reversed(range(ahead.shape[1] - 1)):
            later = ahead[:, moment + 1].lerp(expected[:, moment + 1], trace[:, moment + 1])
            expected[:, moment] = torch.where(drawn.ends[:, moment], -1.0, self._discount * later)
        return expected


def _known(drawn: Windows) -> Tensor:
    """Where [rows, length] there is something to expect: at a fall, and wherever another moment follows."""
    is_real = drawn.actions >= 0
    followed = torch.cat([is_real[:, 1:], torch.zeros_like(is_real[:, :1])], 1)
    return is_real & (drawn.ends | followed)
