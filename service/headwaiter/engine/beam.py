"""Beam search for one request: which beams continue with which tokens, and which hypotheses are finished.

The bookkeeping is that of transformers' `generate`, so the same parameters give the same hypotheses.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

_EXCLUDED_SCORE = np.float32(-1e9)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    tokens: tuple[int, ...]
    score: float


@dataclass(slots=True)
class BeamSearch:
    """Extends `num_beams` hypotheses in parallel; stops when no running one can beat the best finished ones."""

    num_beams: int
    eos_token_ids: Collection[int]
    length_penalty: float
    early_stopping: bool
    max_new_tokens: int
    running: list[tuple[int, ...]] = field(init=False)
    scores: np.ndarray = field(init=False)
    finished: list[Hypothesis] = field(init=False, default_factory=list)
    done: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.running = [()] * self.num_beams
        self.scores = np.full(self.num_beams, _EXCLUDED_SCORE, np.float32)
        self.scores[0] = 0  # all beams start equal, so only the first one counts

    @property
    def num_candidates(self) -> int:
        """Number of tokens to consider per beam, so that enough beams continue when others finish."""
        return max(2, 1 + len(self.eos_token_ids)) * self.num_beams

    def advance(self, tokens: np.ndarray, scores: np.ndarray) -> list[int]:
        """Extend all beams by one token.

        `tokens` and `scores` hold the most likely tokens of each beam and their log-probabilities, both of shape
        [num_beams, num_candidates]. Returns the index of the previous beam that each new beam continues.
        """
        total = scores.astype(np.float32) + self.scores[:, None]
        best = np.argsort(-total, axis=None, kind="stable")[: self.num_candidates]
        parents, columns = np.unravel_index(best, total.shape)
        selected, values = tokens[parents, columns], total[parents, columns]
        length = len(self.running[0]) + 1
        ended = np.array([int(token) in self.eos_token_ids for token in selected]) | (length >= self.max_new_tokens)
        sequences = [(*self.running[parent], int(token)) for parent, token in zip(parents, selected, strict=True)]
        self._finish(sequences, values, ended, length)
        continued = np.argsort(-(values + ended * _EXCLUDED_SCORE), kind="stable")[: self.num_beams]
        self.done = bool(ended.all()) or not self._can_improve(float(values[continued[0]]), length)
        self.running = [sequences[index] for index in continued]
        self.scores = values[continued] + ended[continued] * _EXCLUDED_SCORE
        return [int(parents[index]) for index in continued]

    def best(self, count: int) -> list[Hypothesis]:
        return self.finished[:count]

    def _finish(self, sequences: list[tuple[int, ...]], values: np.ndarray, ended: np.ndarray, length: int) -> None:
        """Only the `num_beams` most likely candidates may finish; the others only fill up the running beams."""
        if self.early_stopping and len(self.finished) == self.num_beams:
            return
        norm = np.float32(length**self.length_penalty)
        for index in range(min(self.num_beams, len(sequences))):
            if ended[index]:
                self.finished.append(Hypothesis(sequences[index], float(values[index] / norm)))
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[self.num_beams :]

    def _can_improve(self, best_running: float, length: int) -> bool:
        if len(self.finished) < self.num_beams:
            return True
        if self.early_stopping:
            return False
        return best_running / length**self.length_penalty > self.finished[-1].score
