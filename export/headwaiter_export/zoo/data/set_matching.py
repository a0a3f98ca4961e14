"""Set prediction loss of DETR (Carion et al. 2020): each object is matched with one prediction; the others are trained
to predict "no object"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from headwaiter_export.zoo.data.boxes import center_to_corners, generalized_iou

_CLASS_WEIGHT, _L1_WEIGHT, _GIOU_WEIGHT = (
    3.0,
    5.0,
    2.0,
)  # the class weight is high because classes of small shapes are learned last
_NO_OBJECT_WEIGHT = 0.2  # of the "no object" class, which most predictions have


@dataclass(frozen=True, slots=True)
class TargetObjects:
    """Objects of one image."""

    classes: Tensor  # [objects]
    boxes: Tensor  # [objects, 4], center and size relative to the image


def set_loss(scores: Tensor, boxes: Tensor, truth: Sequence[TargetObjects]) -> Tensor:
    """Loss of scores [rows, predictions, classes + 1] and boxes [rows, predictions, 4] for the objects of each row."""
    rows, predictions = match_predictions(scores, boxes, truth)
    classes, target_boxes = _concatenate(truth)
    no_object = scores.shape[2] - 1
    target = torch.full(scores.shape[:2], no_object)
    target[rows, predictions] = classes
    weight = torch.ones(no_object + 1)
    weight[no_object] = _NO_OBJECT_WEIGHT
    class_loss = functional.cross_entropy(scores.flatten(0, 1), target.flatten(), weight)
    matched_boxes = boxes[rows, predictions]
    distance = (matched_boxes - target_boxes).abs().sum(-1).mean()
    giou = generalized_iou(center_to_corners(matched_boxes), center_to_corners(target_boxes)).mean()
    return _CLASS_WEIGHT * class_loss + _L1_WEIGHT * distance + _GIOU_WEIGHT * (1 - giou)


@torch.no_grad()
def match_predictions(scores: Tensor, boxes: Tensor, truth: Sequence[TargetObjects]) -> tuple[Tensor, Tensor]:
    """Return the row and the prediction index of each object, in the order of the objects, at minimal total cost."""
    from scipy.optimize import linear_sum_assignment

    counts = [objects.classes.shape[0] for objects in truth]
    predictions = []
    for row, cost in enumerate(_costs(scores, boxes, *_concatenate(truth)).split(counts, 2)):
        prediction, target = linear_sum_assignment(cost[row].numpy())
        predictions.append(torch.from_numpy(prediction[target.argsort()]))
    return torch.arange(len(truth)).repeat_interleave(torch.tensor(counts)), torch.cat(predictions)


def _costs(scores: Tensor, boxes: Tensor, classes: Tensor, target_boxes: Tensor) -> Tensor:
    """Costs [rows, predictions, objects] for the objects of all rows; one product is faster than one per row."""
    distance = torch.cdist(boxes, target_boxes, p=1)
    giou = generalized_iou(center_to_corners(boxes)[:, :, None], center_to_corners(target_boxes))
    return -_CLASS_WEIGHT * scores.softmax(-1)[:, :, classes] + _L1_WEIGHT * distance - _GIOU_WEIGHT * giou


def _concatenate(truth: Sequence[TargetObjects]) -> tuple[Tensor, Tensor]:
    return torch.cat([objects.classes for objects in truth]), torch.cat([objects.boxes for objects in truth])
