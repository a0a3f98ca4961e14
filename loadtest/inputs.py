"""Preprocessed inputs for encoder models, the same ones for every contestant."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadtest.untrained import BERT, VIT

Arrays = dict[str, np.ndarray]
_SEED = 20
_SHORTEST, _USUAL, _LONGEST = 8, 32, 128  # tokens of a text
_BEGIN, _END, _FIRST_WORD, _WORDS = 2, 3, 5, 30522


def images(count: int) -> list[Arrays]:
    pixels = np.random.default_rng(_SEED).standard_normal((count, 3, 224, 224), np.float32)
    return [{"pixels": each} for each in pixels]


def texts(count: int) -> list[Arrays]:
    """Many short ones and few long ones, as texts are: log-normal lengths, in no order."""
    rng = np.random.default_rng(_SEED)
    lengths = np.clip(_USUAL * np.exp(rng.normal(scale=0.6, size=count)), _SHORTEST, _LONGEST).astype(int)
    return [_text(int(length), rng) for length in lengths]


def _text(length: int, rng: np.random.Generator) -> Arrays:
    tokens = rng.integers(_FIRST_WORD, _WORDS, length)
    tokens[0], tokens[-1] = _BEGIN, _END
    return {"tokens": tokens, "segments": np.zeros(length, np.int64)}


INPUTS: dict[str, Callable[[int], list[Arrays]]] = {VIT.name: images, BERT.name: texts}


def batches(items: Sequence[Arrays], size: int) -> list[list[int]]:
    """Which items go together where nobody but the user does the batching: sorted by length."""
    order = sorted(range(len(items)), key=lambda index: len(items[index].get("tokens", ())))
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def together(items: Sequence[Arrays]) -> Arrays:
    """One batch: images stacked, texts padded to the longest of them."""
    if "pixels" in items[0]:
        return {"pixels": np.stack([item["pixels"] for item in items])}
    lengths = np.array([len(item["tokens"]) for item in items], np.int32)
    padded = {name: np.zeros((len(items), lengths.max()), np.int64) for name in items[0]}
    for name, rows in padded.items():
        for row, item in zip(rows, items, strict=True):
            row[: len(item[name])] = item[name]
    return padded | {"lengths": lengths}
