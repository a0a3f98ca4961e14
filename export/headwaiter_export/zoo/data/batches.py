"""Token batches, losses and metrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from headwaiter_export.zoo.data.word_tokenizer import PAD

HELD_OUT_SEED = 2**31
"""Seed of held-out examples; training uses smaller seeds."""
VALIDATION_SEED = HELD_OUT_SEED - 1
"""Seed of validation examples."""


def pad_sequences(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return padded tokens [rows, longest] and lengths [rows]."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    tokens = torch.full((len(rows), int(lengths.max())), PAD)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row)
    return tokens, lengths


def exact_match(logits: Tensor, target: Tensor) -> float:
    """Fraction of sequences in which every target token has the highest logit, so that greedy decoding would generate
    it."""
    return ((logits.argmax(2) == target) | (target == PAD)).all(1).float().mean().item()


def accuracy(scores: Tensor, targets: Tensor) -> float:
    """Accuracy of scores [rows, classes] for the class indices `targets` [rows]."""
    return (scores.argmax(1) == targets).float().mean().item()


def next_token_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of logits [rows, steps, vocabulary] for the target tokens [rows, steps], without padding."""
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
