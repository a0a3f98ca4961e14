"""Choosing the next token of a row: limits on repetition, then the likeliest one or a draw from filtered chances.

Results are those of transformers' processors of the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Sampling:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


def penalise_repetition(scores: np.ndarray, tokens: Sequence[int], penalty: float) -> None:
    seen = np.unique(np.asarray(tokens, np.int64))
    values = scores[seen]
    scores[seen] = np.where(values < 0, values * penalty, values / penalty)


def forbid_repeated_ngrams(scores: np.ndarray, tokens: Sequence[int], size: int) -> None:
    """No `size` tokens in a row come twice."""
    if len(tokens) + 1 < size:
        return
    tail = tuple(tokens[len(tokens) - size + 1 :])
    for start in range(len(tokens) - size + 1):
        if tuple(tokens[start : start + size - 1]) == tail:
            scores[tokens[start + size - 1]] = -np.inf


def filtered(scores: np.ndarray, tokens: np.ndarray, how: Sampling) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that may be drawn, likeliest first, and their chances. `scores` belong to `tokens`, in any order."""
    order = np.argsort(-scores, kind="stable")
    scores, tokens = scores[order] / np.float32(how.temperature), tokens[order]
    if 0 < how.top_k < len(scores):
        kept = scores >= scores[how.top_k - 1]
        scores, tokens = scores[kept], tokens[kept]
    chances = _softmax(scores)
    if how.top_p < 1.0:
        # from the least likely upwards, as long as what is dropped stays within 1 - top_p
        below = np.cumsum(chances[::-1])[::-1]
        kept = below > 1.0 - how.top_p
        kept[0] = True
        chances, tokens = _softmax(scores[kept]), tokens[kept]
    return tokens, chances


def draw(tokens: np.ndarray, chances: np.ndarray, rng: np.random.Generator) -> int:
    place = int(np.searchsorted(np.cumsum(chances), rng.random(), side="right"))
    return int(tokens[min(place, len(tokens) - 1)])


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())
