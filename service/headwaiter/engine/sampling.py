"""Token selection: repetition limits, top-k and top-p filtering, and sampling.

Results equal those of the logits processors of the same names in transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 1.0
    top_k: int = 0  # 0 disables the filter
    top_p: float = 1.0


def penalise_repetition(scores: np.ndarray, tokens: Sequence[int], penalty: float) -> None:
    """Divide positive scores of `tokens` by `penalty` and multiply negative ones by it, in place."""
    seen = np.unique(np.asarray(tokens, np.int64))
    values = scores[seen]
    scores[seen] = np.where(values < 0, values * penalty, values / penalty)


def forbid_repeated_ngrams(scores: np.ndarray, tokens: Sequence[int], size: int) -> None:
    """Set the score of every token that would repeat an n-gram of `size` tokens to -inf, in place."""
    if len(tokens) + 1 < size:
        return
    prefix = tuple(tokens[len(tokens) - size + 1 :])
    for start in range(len(tokens) - size + 1):
        if tuple(tokens[start : start + size - 1]) == prefix:
            scores[tokens[start + size - 1]] = -np.inf


def filter_candidates(scores: np.ndarray, tokens: np.ndarray, sampling: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Apply temperature, top-k and top-p.

    `scores[i]` belongs to `tokens[i]`, in any order. Returns the remaining tokens, most likely first, and their
    probabilities.
    """
    order = np.argsort(-scores, kind="stable")
    scores, tokens = scores[order] / np.float32(sampling.temperature), tokens[order]
    if 0 < sampling.top_k < len(scores):
        mask = scores >= scores[sampling.top_k - 1]
        scores, tokens = scores[mask], tokens[mask]
    probabilities = _softmax(scores)
    if sampling.top_p < 1.0:
        # The least likely tokens are dropped as long as their total probability is at most 1 - top_p.
        tail_mass = np.cumsum(probabilities[::-1])[::-1]
        mask = tail_mass > 1.0 - sampling.top_p
        mask[0] = True
        probabilities, tokens = _softmax(scores[mask]), tokens[mask]
    return tokens, probabilities


def sample_token(tokens: np.ndarray, probabilities: np.ndarray, rng: np.random.Generator) -> int:
    index = int(np.searchsorted(np.cumsum(probabilities), rng.random(), side="right"))
    return int(tokens[min(index, len(tokens) - 1)])


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum())
