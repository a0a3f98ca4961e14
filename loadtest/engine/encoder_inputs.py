"""Preprocessed inputs of the encoder benchmark, identical for every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadtest.random_models import BERT, VIT

Arrays = dict[str, np.ndarray]
_SEED = 20
_MIN_LENGTH, _MEDIAN_LENGTH, _MAX_LENGTH = 8, 32, 128  # tokens
_CLS, _SEP, _FIRST_TOKEN, _VOCABULARY = 2, 3, 5, 30522


def images(count: int) -> list[Arrays]:
    pixels = np.random.default_rng(_SEED).standard_normal((count, 3, 224, 224), np.float32)
    return [{"pixels": image} for image in pixels]


def texts(count: int) -> list[Arrays]:
    """Return token sequences of log-normally distributed lengths, unsorted."""
    rng = np.random.default_rng(_SEED)
    lengths = np.clip(_MEDIAN_LENGTH * np.exp(rng.normal(scale=0.6, size=count)), _MIN_LENGTH, _MAX_LENGTH).astype(int)
    return [_text(int(length), rng) for length in lengths]


def _text(length: int, rng: np.random.Generator) -> Arrays:
    tokens = rng.integers(_FIRST_TOKEN, _VOCABULARY, length)
    tokens[0], tokens[-1] = _CLS, _SEP
    return {"tokens": tokens, "segments": np.zeros(length, np.int64)}


INPUTS: dict[str, Callable[[int], list[Arrays]]] = {VIT.name: images, BERT.name: texts}


def batches(items: Sequence[Arrays], size: int) -> list[list[int]]:
    """Return batches of item indices sorted by length, for engines without dynamic batching."""
    order = sorted(range(len(items)), key=lambda index: len(items[index].get("tokens", ())))
    return [order[begin : begin + size] for begin in range(0, len(order), size)]


def collate(items: Sequence[Arrays]) -> Arrays:
    """Return one batch: images stacked, texts padded to the longest."""
    if "pixels" in items[0]:
        return {"pixels": np.stack([item["pixels"] for item in items])}
    lengths = np.array([len(item["tokens"]) for item in items], np.int32)
    padded = {name: np.zeros((len(items), lengths.max()), np.int64) for name in items[0]}
    for name, rows in padded.items():
        for row, item in zip(rows, items, strict=True):
            row[: len(item[name])] = item[name]
    return padded | {"lengths": lengths}
