"""CartPole with hidden velocities: the right action depends on earlier states."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.cartpole import ACTIONS, TIMESTEPS, cartpole
from headwaiter_export.zoo.data.episodes import (
    Episode,
    EpisodeRecorder,
    WindowBatch,
    greedy_actions,
    make_windows,
    rollout_returns,
    served_returns,
)
from headwaiter_export.zoo.model import Actor, QNetwork

_STATE_UNITS = (
    0.3,
    0.026,
)  # of position and angle: an eighth of the values that end the game, because single steps are small
_HELD_OUT, _VALIDATION_EXAMPLES = 20, 20
_WARMUP_EPISODES, _REPLAY_CAPACITY = 50, 3000  # episodes recorded before training starts; episodes kept
_EPSILON_RANGE = (1.0, 0.05)  # share of random actions at the start and at the end of exploration


def masked_cartpole() -> Any:
    """CartPole whose states are the position of the cart and the angle of the pole."""
    from gymnasium.wrappers import TransformObservation

    return TransformObservation(cartpole(), lambda state: state[[0, 2]], None)


class MaskedCartPole(Dataset):
    """Online double Q-learning (van Hasselt et al. 2015) from a replay of episodes. A moving average of the model
    chooses the actions, provides the targets and is saved, because it is more stable than the model itself.

    The environments, the replay and the average belong to this object. A resumed training keeps its weights but refills
    the replay and restarts exploration, so its final weights differ from those of an uninterrupted run.
    """

    name = "masked-cartpole"
    compatible_models = (QNetwork,)
    metric = "mean return"
    chance_level = 22.0
    keep_best = True

    def __init__(
        self,
        context: int = 16,
        num_environments: int = 32,
        exploration_steps: int = 1500,  # training steps until the share of random actions is minimal
        discount: float = 0.98,
        trace_decay: float = 0.9,  # λ of Q(λ)
        average_rate: float = 0.01,  # update rate of the moving average
    ) -> None:
        self.context, self._exploration_steps = context, exploration_steps
        self._discount, self._trace_decay, self._average_rate = discount, trace_decay, average_rate
        self._recorders = [EpisodeRecorder(masked_cartpole()) for _ in range(num_environments)]
        self._replay: deque[Episode] = deque(maxlen=_REPLAY_CAPACITY)
        self._average: Actor | None = None
        self._steps = 0

    def sizes(self) -> dict[str, Any]:
        return {
            "state": len(_STATE_UNITS),
            "units": _STATE_UNITS,
            "actions": ACTIONS,
            "timesteps": TIMESTEPS,
            "context": self.context,
        }

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        """Squared error of the action values at every step of the windows."""
        average = self._update_average(model)
        while len(self._replay) < _WARMUP_EPISODES:
            self._play(average, rng, epsilon=1.0)
        explored = min(1.0, self._steps / self._exploration_steps)
        self._play(average, rng, epsilon=float(np.interp(explored, (0, 1), _EPSILON_RANGE)))
        self._steps += 1
        batch = self._sample_windows(rng, batch_size)
        values: Tensor = model(batch.trajectories)
        with torch.no_grad():
            best = values.argmax(2)
            next_values = average(batch.trajectories).gather(2, best[:, :, None]).squeeze(2)
            valid = _valid_steps(batch)
            targets = self._td_targets(batch, next_values, self._trace_decay * ((batch.actions == best) & valid))
        taken_values = values.gather(2, batch.actions[:, :, None].clamp(min=0)).squeeze(2)
        return functional.mse_loss(taken_values[valid], targets[valid])

    def model_to_save(self, model: Any) -> Any:
        return self._average or model

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        environments = [masked_cartpole() for _ in range(_VALIDATION_EXAMPLES)]
        return float(np.mean(rollout_returns(model, environments, rng)))

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        return float(np.mean(served_returns(served, masked_cartpole(), max_examples or _HELD_OUT, TIMESTEPS)))

    def _update_average(self, model: Actor) -> Actor:
        if self._average is None:
            self._average = copy.deepcopy(model).requires_grad_(False)
        with torch.no_grad():
            for average, current in zip(self._average.parameters(), model.parameters(), strict=True):
                average.lerp_(current, self._average_rate)
        return self._average

    def _play(self, model: Actor, rng: np.random.Generator, *, epsilon: float) -> None:
        """Take one step in every environment with an ε-greedy policy."""
        actions = greedy_actions(model, [recorder.ensure_started(rng) for recorder in self._recorders])
        for recorder, action in zip(self._recorders, actions, strict=True):
            selected = int(rng.integers(ACTIONS)) if rng.random() < epsilon else action
            if (episode := recorder.step(selected)) is not None:
                self._replay.append(episode)

    def _sample_windows(self, rng: np.random.Generator, batch_size: int) -> WindowBatch:
        lengths = np.array([episode.length for episode in self._replay])
        selected = rng.choice(len(lengths), batch_size, p=lengths / lengths.sum())
        starts = rng.integers(0, np.maximum(1, lengths[selected] - self.context // 2))
        return make_windows([self._replay[index] for index in selected], starts.tolist(), self.context, ACTIONS)

    def _td_targets(self, batch: WindowBatch, next_values: Tensor, trace_decay: Tensor) -> Tensor:
        """Targets [rows, length] of the values of the actions taken, by Q(λ) (Watkins 1989): later rewards count for as
        long as the actions were greedy. A fall has reward -1 and every other step 0; discounted, this ranks actions
        like one point per step, and values stay small."""
        targets = torch.full_like(next_values, -1.0)
        for step in reversed(range(next_values.shape[1] - 1)):
            bootstrapped = next_values[:, step + 1].lerp(targets[:, step + 1], trace_decay[:, step + 1])
            targets[:, step] = torch.where(batch.ends[:, step], -1.0, self._discount * bootstrapped)
        return targets


def _valid_steps(batch: WindowBatch) -> Tensor:
    """Mask [rows, length] of the steps that have a target: falls, and steps that are followed by another one."""
    is_valid = batch.actions >= 0
    has_next = torch.cat([is_valid[:, 1:], torch.zeros_like(is_valid[:, :1])], 1)
    return is_valid & (batch.ends | has_next)
