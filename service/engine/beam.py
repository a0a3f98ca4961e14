"""Beam search for one request: which rows continue with which tokens, and which hypotheses are complete.

The same bookkeeping as transformers' `generate`, so that the same settings give the same hypotheses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

_NEVER = np.float32(-1e9)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    tokens: tuple[int, ...]
    score: float


@dataclass(slots=True)
class Beams:
    """`width` hypotheses grow at once; the best finished ones are kept until no running one can beat them."""

    width: int
    stop: Collection[int]
    length_penalty: float
    early_stopping: bool
    max_new_tokens: int
    running: list[tuple[int, ...]] = field(init=False)
    scores: np.ndarray = field(init=False)
    finished: list[Hypothesis] = field(init=False, default_factory=list)
    done: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.running = [()] * self.width
        self.scores = np.full(self.width, _NEVER, np.float32)
        self.scores[0] = 0  # all rows begin alike: only the first one counts

    @property
    def candidates(self) -> int:
        """How many tokens of each row must be looked at, so that enough go on when others end."""
        return max(2, 1 + len(self.stop)) * self.width

    def advance(self, tokens: np.ndarray, scores: np.ndarray) -> list[int]:
        """Takes each row's likeliest tokens and log-probabilities [width, candidates]; returns, for each row from now
        on, the row that it continues."""
        total = scores.astype(np.float32) + self.scores[:, None]
        best = np.argsort(-total, axis=None, kind="stable")[: self.candidates]
        parents, places = np.unravel_index(best, total.shape)
        chosen, values = tokens[parents, places], total[parents, places]
        length = len(self.running[0]) + 1
        ending = np.array([int(token) in self.stop for token in chosen]) | (length >= self.max_new_tokens)
        sequences = [(*self.running[parent], int(token)) for parent, token in zip(parents, chosen, strict=True)]
        self._finish(sequences, values, ending, length)
        going_on = np.argsort(-(values + ending * _NEVER), kind="stable")[: self.width]
        self.done = bool(ending.all()) or not self._can_improve(float(values[going_on[0]]), length)
        self.running = [sequences[index] for index in going_on]
        self.scores = values[going_on] + ending[going_on] * _NEVER
        return [int(parents[index]) for index in going_on]

    def best(self, count: int) -> list[Hypothesis]:
        return self.finished[:count]

    def _finish(self, sequences: list[tuple[int, ...]], values: np.ndarray, ending: np.ndarray, length: int) -> None:
        """Only the `width` likeliest candidates may end; the others are there so that enough go on."""
        if self.early_stopping and len(self.finished) == self.width:
            return
        norm = np.float32(length**self.length_penalty)
        for index in range(min(self.width, len(sequences))):
            if ending[index]:
                self.finished.append(Hypothesis(sequences[index], float(values[index] / norm)))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.width :]

    def _can_improve(self, best_running: float, length: int) -> bool:
        if len(self.finished) < self.width:
            return True
        if self.early_stopping:
            return False
        return best_running / length**self.length_penalty > self.finished[-1].score
