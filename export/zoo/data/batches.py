"""Rows of tokens as batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from export.zoo.data.words import PAD

HELD_OUT_SEED = 2**31
"""Of examples for measuring: training draws from seeds of its own."""
GLIMPSED_SEED = HELD_OUT_SEED - 1
"""Of examples to look at while learning."""


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Tokens [rows, longest] and lengths [rows]."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    tokens = torch.full((len(rows), int(lengths.max())), PAD)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens, lengths


def exact(logits: Tensor, target: Tensor) -> float:
    """The share of texts in which every next word is the likeliest one, so that choosing greedily would write it."""
    return ((logits.argmax(2) == target) | (target == PAD)).all(1).float().mean().item()


def accuracy(scores: Tensor, answers: Tensor) -> float:
    """Of scores [rows, classes] beside the classes [rows]."""
    return (scores.argmax(1) == answers).float().mean().item()


def next_word_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Logits [rows, steps, vocabulary] beside the tokens [rows, steps] that were to come; padding does not count."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
