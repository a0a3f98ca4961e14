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
from export.zoo.data.episodes import Played, Player, returns_of, windows
from export.zoo.model import Actor, Moments

_LOST = (2.4, 0.2095)  # position and angle at which the game is over
_HELD_OUT = 20
_FIRST, _MOST = 50, 1000  # episodes that are played before learning begins, and that are kept
_EXPLORING = (1.0, 0.02)  # share of random actions, at the beginning and at the end of exploring


def blind_cartpole() -> Any:
    """Leaves the position of the cart and the angle of the pole."""
    from gymnasium.wrappers import TransformObservation

    return TransformObservation(cartpole(), lambda seen: seen[[0, 2]], None)


class BlindCartPole(Data):
    """Learned by playing: double Q-learning from a replay of episodes, with a target network that follows slowly.

    The environments, the replay and the target network are this object's. A training that is taken up again goes on
    with its weights, but fills the replay and explores anew, so it does not end with the same weights as one that was
    never interrupted.
    """

    name = "cartpole, speeds hidden"
    metric = "mean return"
    chance = 22.0

    def __init__(
        self,
        context: int = 16,
        players: int = 8,
        exploring: int = 1000,  # steps of learning, until nearly all actions are the model's
        discount: float = 0.95,
        following: float = 0.05,  # how far the target network moves towards the model at each step
    ) -> None:
        self.context, self._exploring = context, exploring
        self._discount, self._following = discount, following
        self._players = [Player(blind_cartpole()) for _ in range(players)]
        self._replay: deque[Played] = deque(maxlen=_MOST)
        self._target: Actor | None = None
        self._steps = 0

    def sizes(self) -> dict[str, Any]:
        return {
            "state": len(_LOST),
            "units": _LOST,
            "actions": ACTIONS,
            "timesteps": TIMESTEPS,
            "context": self.context,
        }

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        """Of the values at every moment of the windows drawn, not of the last alone."""
        target = self._followed(model)
        while len(self._replay) < _FIRST:
            self._play(model, rng, randomly=1.0)
        done = min(1.0, self._steps / self._exploring)
        self._play(model, rng, randomly=float(np.interp(done, (0, 1), _EXPLORING)))
        self._steps += 1
        return self._error(model, target, rng, batch)

    def measure(self, served: Any, most: int | None = None) -> float:
        return float(np.mean(returns_of(served, blind_cartpole(), most or _HELD_OUT, TIMESTEPS)))

    def _followed(self, model: Actor) -> Actor:
        if self._target is None:
            self._target = copy.deepcopy(model).requires_grad_(False)
        with torch.no_grad():
            for slow, fast in zip(self._target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, self._following)
        return self._target

    def _play(self, model: Actor, rng: np.random.Generator, *, randomly: float) -> None:
        """One step of every player."""
        seen = [self._recalled(player.begun(rng).states) for player in self._players]
        with torch.no_grad():
            best = _values_now(model, seen).argmax(1)
        for player, action in zip(self._players, best.tolist(), strict=True):
            chosen = int(rng.integers(ACTIONS)) if rng.random() < randomly else action
            if (played := player.step(chosen)) is not None:
                self._replay.append(played)

    def _recalled(self, states: list[np.ndarray]) -> list[np.ndarray]:
        """As much as the engine recalls: when the context is full, it goes on with the later half."""
        half, beyond = self.context // 2, len(states) - self.context
        return states if beyond <= 0 else states[-(half + 1 + (beyond - 1) % (self.context - half)) :]

    def _error(self, model: Actor, target: Actor, rng: np.random.Generator, batch: int) -> Tensor:
        """A fall is worth -1 and all else nothing: discounted, this orders actions as a point for every step does, and
        values stay small."""
        lengths = np.array([episode.length for episode in self._replay])
        chosen = rng.choice(len(lengths), batch, p=lengths / lengths.sum())
        begins = rng.integers(0, np.maximum(1, lengths[chosen] - self.context // 2))
        drawn = windows([self._replay[index] for index in chosen], begins.tolist(), self.context + 1, ACTIONS)
        now = Moments(*(each[:, :-1] for each in drawn.moments))
        later = Moments(*(each[:, 1:] for each in drawn.moments))
        actions, ends, is_real = drawn.actions[:, :-1], drawn.ends[:, :-1], drawn.actions >= 0
        with torch.no_grad():
            best = model(later).argmax(2, keepdim=True)
            following = target(later).gather(2, best).squeeze(2)
        taken = model(now).gather(2, actions[:, :, None].clamp(min=0)).squeeze(2)
        expected = torch.where(ends, -1.0, self._discount * following)
        known = is_real[:, :-1] & (ends | is_real[:, 1:])
        return functional.mse_loss(taken[known], expected[known])


def _values_now(model: Actor, seen: list[list[np.ndarray]]) -> Tensor:
    """[rows, actions] after the last of what each row has seen."""
    lengths = torch.tensor([len(states) for states in seen])
    states = torch.zeros(len(seen), int(lengths.max()), seen[0][0].shape[0])
    for row, each in enumerate(seen):
        states[row, : len(each)] = torch.from_numpy(np.array(each))
    nothing = torch.zeros(states.shape[:2])
    values: Tensor = model(Moments(nothing.long(), nothing, states, nothing[:, :, None].expand(-1, -1, ACTIONS)))
    return values[torch.arange(len(seen)), lengths - 1]
