"""Batches of model inputs and outputs as numpy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Arrays = dict[str, np.ndarray]  # by name of the input or output


def pad_rows(rows: Iterable[Sequence[int]], fill: int = 0) -> np.ndarray:
    """Return token sequences as one array, padded on the right."""
    rows = list(rows)
    batch = np.full((len(rows), max(len(row) for row in rows)), fill, np.int64)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    return batch


def ragged_lengths(rows: int, longest: int, rng: np.random.Generator) -> np.ndarray:
    """Return random lengths, at least one of which is `longest`."""
    lengths = rng.integers(max(1, longest // 3), longest + 1, rows)
    lengths[rng.integers(rows)] = longest
    return lengths.astype(np.int32)
