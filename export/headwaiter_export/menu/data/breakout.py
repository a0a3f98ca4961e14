"""Breakout episodes recorded with players of mixed skill."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from headwaiter_export.menu.breakout_environment import MOVES, STATE, TIMESTEPS, Breakout, heuristic_move
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.episodes import Episode, EpisodeRecorder, make_windows, served_returns

EPISODES = 100  # episodes per evaluation
_SKILL_RANGE = (0.5, 1.0)  # probability of a heuristic move instead of a random one


class BreakoutDemonstrations(Dataset):
    """Each episode is played with a random skill: the probability of following the ball instead of moving at random."""

    name = "MinAtar Breakout demonstrations"
    metric = "mean return"
    chance_level = 0.5
    target_return = 40.0

    def __init__(self, episodes: int = 3000, context: int = 8) -> None:
        self._count, self.context = episodes, context

    def sizes(self) -> dict[str, Any]:
        return {"state": int(np.prod(STATE)), "actions": len(MOVES), "timesteps": TIMESTEPS, "context": self.context}

    @cached_property
    def training_episodes(self) -> list[Episode]:
        rng, recorder = np.random.default_rng(0), EpisodeRecorder(Breakout())
        return [_record_episode(recorder, rng, float(rng.uniform(*_SKILL_RANGE))) for _ in range(self._count)]

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        """Steps are sampled uniformly, so episodes are drawn in proportion to their length."""
        lengths = self._lengths
        selected = rng.choice(len(lengths), batch_size, p=lengths / lengths.sum())
        starts = rng.integers(0, lengths[selected])
        batch = make_windows(
            [self.training_episodes[index] for index in selected], starts.tolist(), self.context, len(MOVES)
        )
        logits = model(batch.trajectories)
        return functional.cross_entropy(logits.flatten(0, 1), batch.actions.flatten(), ignore_index=-1)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array([episode.length for episode in self.training_episodes])

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        return mean_return(served, self.target_return, max_examples or EPISODES)


def mean_return(served: Any, target: float, episodes: int = EPISODES) -> float:
    """Mean return of a served policy at target return `target`."""
    return float(np.mean(served_returns(served, Breakout(), episodes, target)))


def _record_episode(recorder: EpisodeRecorder, rng: np.random.Generator, skill: float) -> Episode:
    while True:
        state = recorder.ensure_started(rng).states[-1]
        move = heuristic_move(state) if rng.random() < skill else int(rng.integers(len(MOVES)))
        if (episode := recorder.step(move)) is not None:
            return episode
