"""Episodes that were played, and windows of them as batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from export.zoo.data.batches import HELD_OUT_SEED
from export.zoo.model import Actor, Moments


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
        self.actions: list[int] = []
        self.rewards: list[float] = []

    def begun(self, rng: np.random.Generator) -> Self:
        """In an episode: in a new one where the last is over."""
        if not self.states:
            state, _ = self._environment.reset(seed=int(rng.integers(HELD_OUT_SEED)))
            self.states.append(state)
        return self

    def step(self, action: int) -> Played | None:
        """The whole episode, if this was its last step."""
        state, reward, ended, stopped, _ = self._environment.step(action)
        self.actions.append(action)
        self.rewards.append(float(reward))
        if not (ended or stopped):
            self.states.append(state)
            return None
        rewards = np.array(self.rewards, np.float32)
        played = Played(np.array(self.states, np.float32), np.array(self.actions), rewards, bool(ended))
        self.states, self.actions, self.rewards = [], [], []
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


def chosen_now(model: Actor, players: Sequence[Player], target: float = 0.0) -> list[int]:
    """What a model that is still learning does next in each episode, when it is asked for `target`."""
    context, choices = model.sizes.context, model.sizes.actions
    counts = [_recalled(len(player.states), context) for player in players]
    shape = (len(players), max(counts))
    times, returns = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
    states, actions = np.zeros((*shape, model.sizes.state), np.float32), np.zeros((*shape, choices), np.float32)
    for row, (player, count) in enumerate(zip(players, counts, strict=True)):
        first = len(player.states) - count
        times[row, :count] = np.arange(first, len(player.states))
        returns[row, :count] = target - np.cumsum([0.0, *player.rewards])[first:]
        states[row, :count] = player.states[first:]
        actions[row, : count - 1] = np.eye(choices)[player.actions[first:]]
    with torch.no_grad():
        logits = model(Moments(*map(torch.from_numpy, (times, returns, states, actions))))
    best: list[int] = logits[torch.arange(len(players)), torch.tensor(counts) - 1].argmax(1).tolist()
    return best


def _recalled(seen: int, context: int) -> int:
    """As many moments as the engine recalls: when the context is full, it goes on with the later half."""
    half, beyond = context // 2, seen - context
    return seen if beyond <= 0 else half + 1 + (beyond - 1) % (context - half)


def returns_while_learning(
    model: Actor, environments: Sequence[Any], rng: np.random.Generator, target: float = 0.0
) -> list[float]:
    """What a model gains in an episode of each environment."""
    players = [Player(each).begun(rng) for each in environments]
    gained = []
    while players:
        done = [player.step(action) for player, action in zip(players, chosen_now(model, players, target), strict=True)]
        gained += [float(played.rewards.sum()) for played in done if played is not None]
        players = [player for player, played in zip(players, done, strict=True) if played is None]
    return gained


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
