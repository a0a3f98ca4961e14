"""Mean average precision: how good detections are, whatever the threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from export.zoo.data.boxes import overlap
from export.zoo.data.drawing import Corners


class Found(NamedTuple):
    image: int
    name: str
    score: float
    corners: Corners


class There(NamedTuple):
    image: int
    name: str
    corners: Corners


def mean_average_precision(found: Sequence[Found], there: Sequence[There], least: float = 0.5) -> float:
    """Over the names of what is there. A detection is right if it overlaps a thing of its name by `least`, and is the
    most certain one to do so."""
    names = sorted({thing.name for thing in there})
    return float(np.mean([_average_precision(*_of_name(found, there, name), least) for name in names]))


def _of_name(found: Sequence[Found], there: Sequence[There], name: str) -> tuple[list[Found], list[There]]:
    return [each for each in found if each.name == name], [each for each in there if each.name == name]


def _average_precision(found: list[Found], there: list[There], least: float) -> float:
    """The area under precision over recall, where precision is the best that can be had at that recall or more."""
    right = _right(sorted(found, key=lambda each: -each.score), there, least)
    hits = right.cumsum()
    precision = np.maximum.accumulate((hits / np.arange(1, len(hits) + 1))[::-1])[::-1]
    return float(precision[right].sum() / len(there))


def _right(found: list[Found], there: list[There], least: float) -> NDArray[np.bool_]:
    """Which detections, best first, find a thing that none before them found."""
    remaining: dict[int, list[There]] = {}
    for thing in there:
        remaining.setdefault(thing.image, []).append(thing)
    right = np.zeros(len(found), bool)
    for index, each in enumerate(found):
        near = remaining.get(each.image, [])
        if not near:
            continue
        shares = overlap(torch.tensor(each.corners), torch.tensor([thing.corners for thing in near]))
        best = int(shares.argmax())
        if shares[best] >= least:
            right[index] = True
            del near[best]
    return right
