"""Decoders of actions: a step of the environment is three tokens, and an action follows from the second of them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from export.decoding import Decoder
from export.graph import Port
from export.parity import GRID, Differences, ragged_lengths
from export.rows import Rows
from export.runtime import Arrays, Runtime
from service.package import STATE, Parity, Policy


class PolicyDecoder(Decoder):
    """A step is return to go, state, action; `kinds` says which of them each token is. Discrete actions go in as a one
    among zeros and come out as logits, continuous ones are vectors both times."""

    task = "policy"

    @abstractmethod
    def policy(self) -> Policy: ...

    @abstractmethod
    def timesteps(self) -> int:
        """Steps of the longest episode."""

    @abstractmethod
    def actions(self, last: Tensor) -> Tensor:
        """Logits or vectors [rows, size] that follow from the hidden states of tokens."""

    @abstractmethod
    def original(self, episodes: dict[str, Tensor]) -> Tensor:
        """The same for every step, [rows, length, size], of episodes run whole and without a cache. They have
        `timesteps` [rows, length], `returns` [rows, length, 1], `states` and `actions` [rows, length, size]."""

    def spread(self, actions: np.ndarray) -> float:
        """What differences between actions are measured by."""
        return float(actions.max() - actions.min())

    def limits(self) -> dict[str, int]:
        return {"timesteps": self.timesteps(), "room": 3 * self.timesteps()}

    def step_ports(self) -> dict[str, Port]:
        each, policy = ("rows", "steps"), self.policy()
        return {
            "kinds": Port(torch.int64, each),
            "timesteps": Port(torch.int64, each),
            "returns": Port(torch.float32, each),
            "states": Port(torch.float32, (*each, policy.state_size)),
            "actions": Port(torch.float32, (*each, policy.action_size)),
        }

    def answer_ports(self) -> dict[str, Port]:
        return {self._name(): Port(torch.float32, ("rows", self.policy().action_size))}

    def answer(self, last: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        return {self._name(): self.actions(last).float()}

    def check(self, runtime: Runtime) -> Parity:
        rng = np.random.default_rng(0)
        found = Differences()
        for rows, length in GRID:
            episodes = self._episodes(rows, length, rng)
            with torch.no_grad():
                expected = np.asarray(self.original({name: torch.from_numpy(each) for name, each in episodes.items()}))
            stepped = self._stepped(runtime, episodes)
            lengths = ragged_lengths(rows, expected.shape[1], rng)
            last, spread = expected[np.arange(rows), lengths - 1], self.spread(expected)
            found.add("logits", stepped, expected, spread)
            found.add("cached", self._at_once(runtime, episodes, lengths), last, spread)
            found.add("batched", self._alone(runtime, episodes), stepped, spread)
            if rows > 1:
                found.add("positions", self._beside(runtime, episodes), expected[[0, 1], [2, 0]], spread)
        return found.parity()

    def trial(self, runtime: Runtime, rng: np.random.Generator) -> Arrays:
        episodes, name = self._episodes(*GRID[-1], rng), self._name()
        return {name: self._stepped(runtime, episodes), f"{name}:alone": self._alone(runtime, episodes)}

    def _name(self) -> str:
        return "logits" if self.policy().actions == "discrete" else "action"

    def _episodes(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:
        """No longer than what the engine ever lets the model look back on."""
        policy = self.policy()
        length = min(length, policy.context, self.timesteps())
        if policy.actions == "discrete":
            actions = np.eye(policy.action_size)[rng.integers(policy.action_size, size=(rows, length))]
        else:
            actions = rng.standard_normal((rows, length, policy.action_size))
        return {
            "timesteps": np.tile(np.arange(length), (rows, 1)),
            "returns": rng.standard_normal((rows, length, 1)).astype(np.float32),
            "states": rng.standard_normal((rows, length, policy.state_size)).astype(np.float32),
            "actions": actions.astype(np.float32),
        }

    def _stepped(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        """The tokens go in one after another: several at once fit only an empty cache."""
        tokens, (rows, length) = _tokens(episodes), episodes["timesteps"].shape
        started, ones = Rows.begin(runtime, {}, rows, 3 * length), np.ones(rows, np.int32)
        answers = [started.advance(_between(tokens, at, at + 1), ones)[self._name()] for at in range(3 * length)]
        return np.stack(answers[STATE::3], 1)

    def _alone(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        rows = range(episodes["timesteps"].shape[0])
        return np.concatenate([self._stepped(runtime, _row(episodes, index)) for index in rows])

    def _at_once(self, runtime: Runtime, episodes: Arrays, lengths: np.ndarray) -> np.ndarray:
        tokens = _between(_tokens(episodes), 0, 3 * int(lengths.max()))
        until_state = (3 * lengths - 1).astype(np.int32)
        rows = Rows.begin(runtime, {}, len(lengths), tokens["kinds"].shape[1])
        return rows.advance(tokens, until_state)[self._name()]

    def _beside(self, runtime: Runtime, episodes: Arrays) -> np.ndarray:
        """The first episode in its third step beside the second in its first."""
        first, second = (_row(_tokens(episodes), index) for index in (0, 1))
        ones = np.ones(1, np.int32)
        early, late = (Rows.begin(runtime, {}, 1, 9) for _ in range(2))
        late.advance(_between(first, 0, 7), 7 * ones)
        early.advance(_between(second, 0, 1), ones)
        both = {name: np.concatenate([first[name][:, 7:8], second[name][:, 1:2]]) for name in first}
        return late.beside(early).advance(both, np.ones(2, np.int32))[self._name()]


def _tokens(episodes: Arrays) -> Arrays:
    """Episodes as the token sequences that the decoder reads."""
    tripled = {name: np.repeat(value, 3, axis=1) for name, value in episodes.items()}
    return {
        "kinds": np.tile(np.arange(3), episodes["timesteps"].shape),
        **tripled,
        "returns": tripled["returns"][:, :, 0],
    }


def _row(arrays: Arrays, index: int) -> Arrays:
    return {name: value[index : index + 1] for name, value in arrays.items()}


def _between(tokens: Arrays, begin: int, end: int) -> Arrays:
    return {name: value[:, begin:end] for name, value in tokens.items()}
