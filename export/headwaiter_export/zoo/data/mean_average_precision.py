"""Mean average precision of detections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from headwaiter_export.zoo.data.boxes import iou
from headwaiter_export.zoo.data.shape_scenes import Corners


class Detection(NamedTuple):
    image: int
    name: str
    score: float
    corners: Corners


class GroundTruth(NamedTuple):
    image: int
    name: str
    corners: Corners


def mean_average_precision(
    detections: Sequence[Detection], truth: Sequence[GroundTruth], iou_threshold: float = 0.5
) -> float:
    """Mean over the classes in `truth`. A detection is correct if its IoU with an object of its class is at least
    `iou_threshold` and no more confident detection claimed that object."""
    names = sorted({target.name for target in truth})
    return float(
        np.mean([_average_precision(*_filter_by_class(detections, truth, name), iou_threshold) for name in names])
    )


def _filter_by_class(
    detections: Sequence[Detection], truth: Sequence[GroundTruth], name: str
) -> tuple[list[Detection], list[GroundTruth]]:
    return [item for item in detections if item.name == name], [item for item in truth if item.name == name]


def _average_precision(detections: list[Detection], truth: list[GroundTruth], iou_threshold: float) -> float:
    """Area under the interpolated precision-recall curve."""
    correct = _true_positives(sorted(detections, key=lambda detection: -detection.score), truth, iou_threshold)
    hits = correct.cumsum()
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    return float(precision[correct].sum() / len(truth))


def _true_positives(detections: list[Detection], truth: list[GroundTruth], iou_threshold: float) -> NDArray[np.bool_]:
    """Mask of the detections, most confident first, that match an object no earlier detection matched."""
    remaining: dict[int, list[GroundTruth]] = {}
    for target in truth:
        remaining.setdefault(target.image, []).append(target)
    correct = np.zeros(len(detections), bool)
    for index, detection in enumerate(detections):
        candidates = remaining.get(detection.image, [])
        if not candidates:
            continue
        overlaps = iou(torch.tensor(detection.corners), torch.tensor([target.corners for target in candidates]))
        best = int(overlaps.argmax())
        if overlaps[best] >= iou_threshold:
            correct[index] = True
            del candidates[best]
    return correct
