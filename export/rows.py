"""Rows being decoded, for the checks: the simplest loop over the graphs that can go wrong in every way that counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from export.parity import padded
from export.runtime import Arrays, Runtime


@dataclass(slots=True)
class Rows:
    """Rows with their caches, each at a position of its own."""

    runtime: Runtime
    caches: Arrays
    cross: Arrays
    source_lengths: np.ndarray
    positions: np.ndarray

    @classmethod
    def begin(cls, runtime: Runtime, source: Arrays, rows: int, room: int) -> Self:
        encoded = runtime.run("encoder", source) if source else {}
        lengths = source.get("lengths", np.zeros(rows, np.int32))
        caches = runtime.caches(rows, room)
        caches |= {name: value for name, value in encoded.items() if name in caches}  # states that the source begins
        cross = {name: value for name, value in encoded.items() if name not in caches}
        return cls(runtime, caches, cross, lengths, np.zeros(rows, np.int32))

    def advance(self, feeds: Arrays, lengths: np.ndarray) -> Arrays:
        """One call of the decoder with `lengths` new tokens in each row."""
        after = self.positions + lengths
        steps = next(iter(feeds.values())).shape[1]
        total = steps if not self.positions.any() else int(after.max())
        answer = self.runtime.step(
            {
                **feeds,
                **self.cross,
                "k": np.array([1]),
                "lengths": lengths,
                "positions": self.positions,
                "source_lengths": self.source_lengths,
                "total": np.array(total),
            },
            self.caches,
        )
        self.positions = after.astype(np.int32)
        return answer

    def read(self, tokens: list[list[int]]) -> Arrays:
        return self.advance({"tokens": padded(tokens)}, np.array([len(row) for row in tokens], np.int32))

    def greedy(self, prompts: list[list[int]], steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Chosen tokens [rows, steps] and the logits [rows, steps, vocabulary] they were chosen from."""
        tokens, logits = [], []
        answer = self.read(prompts)
        while True:
            tokens.append(answer["top_tokens"][:, 0])
            logits.append(answer["logits"])
            if len(tokens) == steps:
                return np.stack(tokens, 1), np.stack(logits, 1)
            answer = self.read([[int(token)] for token in tokens[-1]])

    def follow(self, tokens: np.ndarray) -> np.ndarray:
        """Logits [rows, steps, vocabulary] along given tokens [rows, steps], read one by one."""
        return np.stack([self.read([[int(t)] for t in column])["logits"] for column in tokens.T], 1)

    def beside(self, other: Rows) -> Rows:
        """Both sets of rows in one batch, wherever each stands."""
        longest = max(_source(self), _source(other))
        return Rows(
            self.runtime,
            _stacked(self.caches, other.caches),
            {
                name: np.concatenate([_widened(v, longest), _widened(other.cross[name], longest)])
                for name, v in self.cross.items()
            },
            np.concatenate([self.source_lengths, other.source_lengths]),
            np.concatenate([self.positions, other.positions]),
        )


def _stacked(first: Arrays, second: Arrays) -> Arrays:
    return {name: np.concatenate([value, second[name]]) for name, value in first.items()}


def _source(rows: Rows) -> int:
    return next(iter(rows.cross.values())).shape[2] if rows.cross else 0


def _widened(cross: np.ndarray, source: int) -> np.ndarray:
    return np.pad(cross, ((0, 0), (0, 0), (0, source - cross.shape[2]), (0, 0)))
