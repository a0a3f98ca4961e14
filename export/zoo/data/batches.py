"""Rows of tokens as batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from export.zoo.data.words import PAD

HELD_OUT_SEED = 2**31
"""Of examples for measuring: training draws from seeds of its own."""


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens [rows, longest] and lengths [rows]."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    tokens = torch.full((len(rows), int(lengths.max())), PAD)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens, lengths


def next_word_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Logits [rows, steps, vocabulary] beside the tokens [rows, steps] that were to come; padding does not count."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
