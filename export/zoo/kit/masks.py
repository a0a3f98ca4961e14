"""Which places of a padded batch are real."""

from __future__ import annotations

import torch
from torch import Tensor

FAR = -1e4  # added to a score, it leaves nothing of it; fits half precision


def inside(lengths: Tensor, width: int) -> Tensor:
    """[rows, width], true for the first `lengths` [rows] places of each row."""
    return torch.arange(width)[None] < lengths[:, None]


def outside(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width)[None] >= lengths[:, None]


def blanked(states: Tensor, lengths: Tensor | None) -> Tensor:
    """States [rows, width, size] with zeros where nothing real is."""
    if lengths is None:
        return states
    return states * inside(lengths, states.shape[1])[:, :, None].to(states.dtype)


def mean(states: Tensor, lengths: Tensor | None) -> Tensor:
    """The average of each row's real places, [rows, size]."""
    if lengths is None:
        return states.mean(1)
    return blanked(states, lengths).sum(1) / lengths[:, None].to(states.dtype)
