"""Recorded episodes and batches of windows of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from headwaiter_export.zoo.data.batches import HELD_OUT_SEED
from headwaiter_export.zoo.model import Actor, Trajectories


@dataclass(frozen=True, slots=True)
class Episode:
    """States [length, size], actions [length] and rewards [length]; `ended` is false if the episode was truncated."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    ended: bool

    @property
    def length(self) -> int:
        return len(self.actions)


class EpisodeRecorder:
    """Steps an environment and records the current episode."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.states: list[np.ndarray] = []  # the last one is the current state
        self.actions: list[int] = []
        self.rewards: list[float] = []

    def ensure_started(self, rng: np.random.Generator) -> Self:
        """Reset the environment if no episode is in progress."""
        if not self.states:
            state, _ = self._environment.reset(seed=int(rng.integers(HELD_OUT_SEED)))
            self.states.append(state)
        return self

    def step(self, action: int) -> Episode | None:
        """Return the complete episode if this was its last step, else None."""
        state, reward, ended, stopped, _ = self._environment.step(action)
        self.actions.append(action)
        self.rewards.append(float(reward))
        if not (ended or stopped):
            self.states.append(state)
            return None
        rewards = np.array(self.rewards, np.float32)
        episode = Episode(np.array(self.states, np.float32), np.array(self.actions), rewards, bool(ended))
        self.states, self.actions, self.rewards = [], [], []
        return episode


@dataclass(frozen=True, slots=True)
class WindowBatch:
    """Windows of episodes, padded to one length. Padding has action -1."""

    trajectories: Trajectories
    actions: torch.Tensor  # [rows, length]
    ends: torch.Tensor  # [rows, length], true at the last step of an episode that ended


def make_windows(episodes: Sequence[Episode], starts: Sequence[int], length: int, num_actions: int) -> WindowBatch:
    """Cut a window of up to `length` steps from each episode at its start."""
    rows, size = len(episodes), episodes[0].states.shape[1]
    returns, states = np.zeros((rows, length), np.float32), np.zeros((rows, length, size), np.float32)
    actions, ends = np.full((rows, length), -1), np.zeros((rows, length), bool)
    for row, (episode, start) in enumerate(zip(episodes, starts, strict=True)):
        stop = min(episode.length, start + length)
        valid = slice(0, stop - start)
        returns[row, valid] = episode.rewards[start:][::-1].cumsum()[::-1][valid]
        states[row, valid] = episode.states[start:stop]
        actions[row, valid] = episode.actions[start:stop]
        ends[row, stop - start - 1] = episode.ended and stop == episode.length
    one_hot = np.concatenate([np.eye(num_actions), np.zeros((1, num_actions))])[actions].astype(np.float32)
    times = np.asarray(starts)[:, None] + np.arange(length)
    last = np.asarray([episode.length for episode in episodes])[:, None] - 1
    trajectories = Trajectories(*map(torch.from_numpy, (np.minimum(times, last), returns, states, one_hot)))
    return WindowBatch(trajectories, torch.from_numpy(actions), torch.from_numpy(ends))


def greedy_actions(model: Actor, recorders: Sequence[EpisodeRecorder], target: float = 0.0) -> list[int]:
    """Return the best next action of each episode at target return `target`, for a model in training."""
    context, num_actions = model.sizes.context, model.sizes.actions
    counts = [_context_length(len(recorder.states), context) for recorder in recorders]
    shape = (len(recorders), max(counts))
    times, returns = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    states, actions = np.zeros((*shape, model.sizes.state), np.float32), np.zeros((*shape, num_actions), np.float32)
    for row, (recorder, count) in enumerate(zip(recorders, counts, strict=True)):
        first = len(recorder.states) - count
        times[row, :count] = np.arange(first, len(recorder.states))
        returns[row, :count] = target - np.cumsum([0.0, *recorder.rewards])[first:]
        states[row, :count] = recorder.states[first:]
        actions[row, : count - 1] = np.eye(num_actions)[recorder.actions[first:]]
    with torch.no_grad():
        logits = model(Trajectories(*map(torch.from_numpy, (times, returns, states, actions))))
    best: list[int] = logits[torch.arange(len(recorders)), torch.tensor(counts) - 1].argmax(1).tolist()
    return best


def _context_length(steps: int, context: int) -> int:
    """Number of steps that the engine keeps: when the context is full, it continues with the later half."""
    half, excess = context // 2, steps - context
    return steps if excess <= 0 else half + 1 + (excess - 1) % (context - half)


def rollout_returns(
    model: Actor, environments: Sequence[Any], rng: np.random.Generator, target: float = 0.0
) -> list[float]:
    """Return of one episode in each environment, for a model in training."""
    recorders = [EpisodeRecorder(environment).ensure_started(rng) for environment in environments]
    returns = []
    while recorders:
        finished = [
            recorder.step(action)
            for recorder, action in zip(recorders, greedy_actions(model, recorders, target), strict=True)
        ]
        returns += [float(episode.rewards.sum()) for episode in finished if episode is not None]
        recorders = [recorder for recorder, episode in zip(recorders, finished, strict=True) if episode is None]
    return returns


def served_returns(served: Any, environment: Any, episodes: int, target: float) -> list[float]:
    """Returns of a served policy over whole episodes at target return `target`, with seeds not used in training."""
    returns = []
    for index in range(episodes):
        state, _ = environment.reset(seed=HELD_OUT_SEED + index)
        reward: float | None = None
        over, total = False, 0.0
        with served.episode(target) as episode:
            while not over:
                action = episode.step(state, reward).discrete
                state, reward, ended, stopped, _ = environment.step(action)
                total, over = total + reward, ended or stopped
        returns.append(total)
    return returns
