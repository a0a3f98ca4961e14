"""CartPole: balance a pole on a cart by pushing left or right; one point per step, 500 at most."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional

from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.episodes import Episode, EpisodeRecorder, make_windows, rollout_returns, served_returns
from headwaiter_export.zoo.model import Actor

ACTIONS, TIMESTEPS = 2, 500
# The linear controller pushes right if the weighted sum of position, velocity, angle and angular velocity is positive.
_CONTROLLER_WEIGHTS = np.array([0.05, 0.1, 1.0, 0.5])
_SKILL_RANGE = (0.3, 0.85)  # probability that a controller takes the right action: worse than random to decent
_HELD_OUT, _VALIDATION_EXAMPLES = 20, 5


def cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


class CartPole(Dataset):
    """Episodes of mixed quality: each is recorded with a controller of random skill, and most end early."""

    name = "cartpole"
    compatible_models = (Actor,)
    metric = "mean return"
    chance_level = 22.0

    def __init__(self, episodes: int = 500, context: int = 20) -> None:
        self._count, self.context = episodes, context

    def sizes(self) -> dict[str, Any]:
        return {"state": 4, "actions": ACTIONS, "timesteps": TIMESTEPS, "context": self.context}

    @cached_property
    def training_episodes(self) -> list[Episode]:
        rng, recorder = np.random.default_rng(0), EpisodeRecorder(cartpole())
        return [_record_episode(recorder, rng, float(rng.uniform(*_SKILL_RANGE))) for _ in range(self._count)]

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        """Steps are sampled uniformly, so episodes are drawn in proportion to their length."""
        lengths = np.array([episode.length for episode in self.training_episodes])
        selected = rng.choice(len(lengths), batch_size, p=lengths / lengths.sum())
        starts = rng.integers(0, lengths[selected])
        batch = make_windows(
            [self.training_episodes[index] for index in selected], starts.tolist(), self.context, ACTIONS
        )
        logits = model(batch.trajectories)
        return functional.cross_entropy(logits.flatten(0, 1), batch.actions.flatten(), ignore_index=-1)

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        environments = [cartpole() for _ in range(_VALIDATION_EXAMPLES)]
        return float(np.mean(rollout_returns(model, environments, rng, TIMESTEPS)))

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        return self.mean_return(served, TIMESTEPS, max_examples)

    def mean_return(self, served: Any, target: float, max_examples: int | None = None) -> float:
        """Mean return at target return `target`."""
        return float(np.mean(served_returns(served, cartpole(), max_examples or _HELD_OUT, target)))


def _record_episode(recorder: EpisodeRecorder, rng: np.random.Generator, skill: float) -> Episode:
    while True:
        push_right = _CONTROLLER_WEIGHTS @ recorder.ensure_started(rng).states[-1] > 0
        if (episode := recorder.step(int(push_right == (rng.random() < skill)))) is not None:
            return episode
