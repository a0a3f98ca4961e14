"""Token selection: repetition limits, top-k and top-p filtering, and sampling.

Results equal those of the logits processors of the same names in transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NUCLEUS_CANDIDATES = 512  # tokens that are sorted for top-p; more are if they have less probability than top-p


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

    `scores[i]` belongs to `tokens[i]`, in any order. Returns the remaining tokens, in any order, and their
    probabilities. The whole vocabulary is never sorted, because that takes longer than a step of a small model.
    """
    scores = scores / np.float32(sampling.temperature)
    if 0 < sampling.top_k < len(scores):
        mask = scores >= np.partition(scores, -sampling.top_k)[-sampling.top_k]
        scores, tokens = scores[mask], tokens[mask]
    probabilities = _softmax(scores)
    if sampling.top_p == 1.0:
        return tokens, probabilities
    nucleus = _nucleus(probabilities, sampling.top_p)
    return tokens[nucleus], _softmax(scores[nucleus])


def _nucleus(probabilities: np.ndarray, top_p: float) -> np.ndarray:
    """Indices of the most likely tokens, without the tail whose total probability is at most 1 - `top_p`."""
    count, size = len(probabilities), min(_NUCLEUS_CANDIDATES, len(probabilities))
    while True:
        largest = np.argpartition(probabilities, count - size)[count - size :]
        if size == count or probabilities[largest].sum() >= top_p:
            break
        size = min(8 * size, count)
    order = largest[np.argsort(-probabilities[largest], kind="stable")]
    sorted_probabilities = probabilities[order]
    outside = 1.0 - sorted_probabilities.sum() if size < count else 0.0
    tail_mass = np.cumsum(sorted_probabilities[::-1])[::-1] + outside
    mask = tail_mass > 1.0 - top_p
    mask[0] = True
    return np.asarray(order[mask])


def sample_token(tokens: np.ndarray, probabilities: np.ndarray, rng: np.random.Generator) -> int:
    index = int(np.searchsorted(np.cumsum(probabilities), rng.random(), side="right"))
    return int(tokens[min(index, len(tokens) - 1)])


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum())
