"""Box geometry. Boxes are center x, center y, width and height; corners are left, top, right and bottom."""

from __future__ import annotations

import torch
from torch import Tensor


def center_to_corners(boxes: Tensor) -> Tensor:
    center, size = boxes.split(2, -1)
    return torch.cat([center - size / 2, center + size / 2], -1)


def corners_to_center(corners: Tensor) -> Tensor:
    low, high = corners.split(2, -1)
    return torch.cat([(low + high) / 2, high - low], -1)


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of corners [..., 4] that broadcast."""
    intersection, union = _intersection_and_union(first, second)
    return intersection / union


def generalized_iou(first: Tensor, second: Tensor) -> Tensor:
    """Rezatofighi et al. 2019: IoU minus the fraction of the enclosing box that neither box covers."""
    intersection, union = _intersection_and_union(first, second)
    low, high = torch.minimum(first[..., :2], second[..., :2]), torch.maximum(first[..., 2:], second[..., 2:])
    enclosing = (high - low).prod(-1)
    return intersection / union - (enclosing - union) / enclosing


def _intersection_and_union(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    intersection = (high - low).clamp(min=0).prod(-1)
    areas = [(corners[..., 2:] - corners[..., :2]).prod(-1) for corners in (first, second)]
    return intersection, areas[0] + areas[1] - intersection
