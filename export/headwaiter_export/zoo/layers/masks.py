"""Masks of padded batches."""

from __future__ import annotations

import torch
from torch import Tensor

MASK_BIAS = -1e4  # added to a score it makes the softmax weight zero; fits half precision


def valid_mask(lengths: Tensor, width: int) -> Tensor:
    """Mask [rows, width] that is true at the first `lengths` [rows] positions of each row."""
    return torch.arange(width)[None] < lengths[:, None]


def padding_mask(lengths: Tensor, width: int) -> Tensor:
    """Complement of `valid_mask`."""
    return torch.arange(width)[None] >= lengths[:, None]


def zero_padding(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Set the padding of states [rows, width, size] to zero."""
    if lengths is None:
        return states
    return states * valid_mask(lengths, states.shape[1])[:, :, None].to(states.dtype)


def mean(states: Tensor, lengths: Tensor | None) -> Tensor:
    """Mean [rows, size] over each row's valid positions."""
    if lengths is None:
        return states.mean(1)
    return zero_padding(states, lengths).sum(1) / lengths[:, None].to(states.dtype)
