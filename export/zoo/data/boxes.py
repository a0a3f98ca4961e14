"""Boxes, as centre x and y, width and height, and as left, top, right and bottom."""

from __future__ import annotations

import torch
from torch import Tensor


def to_corners(boxes: Tensor) -> Tensor:
    centre, size = boxes.split(2, -1)
    return torch.cat([centre - size / 2, centre + size / 2], -1)


def from_corners(corners: Tensor) -> Tensor:
    low, high = corners.split(2, -1)
    return torch.cat([(low + high) / 2, high - low], -1)


def overlap(one: Tensor, other: Tensor) -> Tensor:
    """Of corners [..., 4] that broadcast: what both cover, as a share of what either covers."""
    common, either = _areas(one, other)
    return common / either


def generalised_overlap(one: Tensor, other: Tensor) -> Tensor:
    """Rezatofighi et al. 2019: less the share of the box around both that neither covers, so that distance counts."""
    common, either = _areas(one, other)
    low, high = torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:])
    around = (high - low).prod(-1)
    return common / either - (around - either) / around


def _areas(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    low, high = torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [(corners[..., 2:] - corners[..., :2]).prod(-1) for corners in (one, other)]
    return common, areas[0] + areas[1] - common
