"""Episodes that were played, and windows of them as batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from export.zoo.data.batches import HELD_OUT_SEED
from export.zoo.model import Moments


@dataclass(frozen=True, slots=True)
class Played:
    """What was seen [length, size], done [length] and gained [length]; `ended` where the environment was over and not
    the patience with it."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    ended: bool

    @property
    def length(self) -> int:
        return len(self.actions)


class Player:
    """An environment, played step by step, and the episode so far."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self.states: list[np.ndarray] = []  # the last of them is now
        self._actions: list[int] = []
        self._rewards: list[float] = []

    def begun(self, rng: np.random.Generator) -> Self:
        """In an episode: in a new one where the last is over."""
        if not self.states:
            state, _ = self._environment.reset(seed=int(rng.integers(HELD_OUT_SEED)))
            self.states.append(state)
        return self

    def step(self, action: int) -> Played | None:
        """The whole episode, if this was its last step."""
        state, reward, ended, stopped, _ = self._environment.step(action)
        self._actions.append(action)
        self._rewards.append(float(reward))
        if not (ended or stopped):
            self.states.append(state)
            return None
        rewards = np.array(self._rewards, np.float32)
        played = Played(np.array(self.states, np.float32), np.array(self._actions), rewards, bool(ended))
        self.states, self._actions, self._rewards = [], [], []
        return played


@dataclass(frozen=True, slots=True)
class Windows:
    """Parts of episodes, padded to one length. Moments of padding have the action -1."""

    moments: Moments
    actions: torch.Tensor  # [rows, length]
    ends: torch.Tensor  # [rows, length], true at the last moment of an episode that ended


def windows(episodes: Sequence[Played], begins: Sequence[int], length: int, choices: int) -> Windows:
    """From each episode what begins there; `choices` is the number of actions."""
    rows, size = len(episodes), episodes[0].states.shape[1]
    returns, states = np.zeros((rows, length), np.float32), np.zeros((rows, length, size), np.float32)
    actions, ends = np.full((rows, length), -1), np.zeros((rows, length), bool)
    for row, (episode, begin) in enumerate(zip(episodes, begins, strict=True)):
        stop = min(episode.length, begin + length)
        real = slice(0, stop - begin)
        returns[row, real] = episode.rewards[begin:][::-1].cumsum()[::-1][real]
        states[row, real] = episode.states[begin:stop]
        actions[row, real] = episode.actions[begin:stop]
        ends[row, stop - begin - 1] = episode.ended and stop == episode.length
    done = np.concatenate([np.eye(choices), np.zeros((1, choices))])[actions].astype(np.float32)
    times = np.asarray(begins)[:, None] + np.arange(length)
    last = np.asarray([episode.length for episode in episodes])[:, None] - 1
    moments = Moments(*map(torch.from_numpy, (np.minimum(times, last), returns, states, done)))
    return Windows(moments, torch.from_numpy(actions), torch.from_numpy(ends))


def returns_of(served: Any, environment: Any, episodes: int, target: float) -> list[float]:
    """What a served policy gains in whole episodes when it is asked for `target`. Training begins from other
    seeds."""
    gained = []
    for index in range(episodes):
        state, _ = environment.reset(seed=HELD_OUT_SEED + index)
        reward: float | None = None
        over, total = False, 0.0
        with served.episode(target) as episode:
            while not over:
                action = episode.step(state, reward).discrete
                state, reward, ended, stopped, _ = environment.step(action)
                total, over = total + reward, ended or stopped
        gained.append(total)
    return gained
