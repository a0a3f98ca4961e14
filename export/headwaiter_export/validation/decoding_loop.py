"""A minimal decoding loop over the encoder and decoder graphs, for the parity checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from headwaiter_export.arrays import Arrays, pad_rows
from headwaiter_export.validation.runtime import Runtime


@dataclass(slots=True)
class DecodingBatch:
    """Rows with their caches. Each row has its own position."""

    runtime: Runtime
    caches: Arrays
    cross: Arrays
    source_lengths: np.ndarray
    positions: np.ndarray

    @classmethod
    def begin(cls, runtime: Runtime, source: Arrays, rows: int, max_length: int) -> Self:
        """Run the encoder, if there is a source, and return a batch at position 0."""
        encoded = runtime.run("encoder", source) if source else {}
        lengths = source.get("lengths", np.zeros(rows, np.int32))
        caches = runtime.caches(rows, max_length)
        caches |= {name: value for name, value in encoded.items() if name in caches}  # states set by the encoder
        cross = {name: value for name, value in encoded.items() if name not in caches}
        return cls(runtime, caches, cross, lengths, np.zeros(rows, np.int32))

    def advance(self, feeds: Arrays, lengths: np.ndarray) -> Arrays:
        """Run one decoder step with `lengths` [rows] new tokens and return its outputs."""
        new_positions = self.positions + lengths
        steps = next(iter(feeds.values())).shape[1]
        total = steps if not self.positions.any() else int(new_positions.max())
        outputs = self.runtime.step(
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
        self.positions = new_positions.astype(np.int32)
        return outputs

    def feed_tokens(self, tokens: list[list[int]]) -> Arrays:
        return self.advance({"tokens": pad_rows(tokens)}, np.array([len(row) for row in tokens], np.int32))

    def greedy(self, prompts: list[list[int]], steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Decode greedily; returns tokens [rows, steps] and their logits [rows, steps, vocabulary]."""
        tokens, logits = [], []
        outputs = self.feed_tokens(prompts)
        while True:
            tokens.append(outputs["top_tokens"][:, 0])
            logits.append(outputs["logits"])
            if len(tokens) == steps:
                return np.stack(tokens, 1), np.stack(logits, 1)
            outputs = self.feed_tokens([[int(token)] for token in tokens[-1]])

    def teacher_force(self, tokens: np.ndarray) -> np.ndarray:
        """Feed tokens [rows, steps] one by one; returns logits [rows, steps, vocabulary]."""
        return np.stack([self.feed_tokens([[int(t)] for t in column])["logits"] for column in tokens.T], 1)

    def merge(self, other: DecodingBatch) -> DecodingBatch:
        """Return one batch with the rows of both, which may be at different positions."""
        source_length = max(_source_length(self), _source_length(other))
        return DecodingBatch(
            self.runtime,
            _concatenate(self.caches, other.caches),
            {
                name: np.concatenate([_pad_source(value, source_length), _pad_source(other.cross[name], source_length)])
                for name, value in self.cross.items()
            },
            np.concatenate([self.source_lengths, other.source_lengths]),
            np.concatenate([self.positions, other.positions]),
        )


def _concatenate(first: Arrays, second: Arrays) -> Arrays:
    return {name: np.concatenate([value, second[name]]) for name, value in first.items()}


def _source_length(batch: DecodingBatch) -> int:
    return next(iter(batch.cross.values())).shape[2] if batch.cross else 0


def _pad_source(cross: np.ndarray, length: int) -> np.ndarray:
    return np.pad(cross, ((0, 0), (0, 0), (0, length - cross.shape[2]), (0, 0)))
