"""Carion et al. 2020: guesses are a set; each thing is matched with one of them, and the others learn to be nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from export.zoo.data.boxes import generalised_overlap, to_corners

_CLASS, _DISTANCE, _OVERLAP = 3.0, 5.0, 2.0  # what each part counts; kinds of small shapes are learned last
_NOTHING = 0.2  # what a guess of nothing counts: most are that


@dataclass(frozen=True, slots=True)
class Things:
    """What there is in one image."""

    classes: Tensor  # [things]
    boxes: Tensor  # [things, 4], centre and size as shares of the image


def set_loss(scores: Tensor, boxes: Tensor, truth: Sequence[Things]) -> Tensor:
    """Scores [rows, guesses, classes + 1] and boxes [rows, guesses, 4] beside what there is in each row."""
    rows, guesses = match(scores, boxes, truth)
    classes, places = _joined(truth)
    nothing = scores.shape[2] - 1
    target = torch.full(scores.shape[:2], nothing)
    target[rows, guesses] = classes
    weight = torch.ones(nothing + 1)
    weight[nothing] = _NOTHING
    named = functional.cross_entropy(scores.flatten(0, 1), target.flatten(), weight)
    found = boxes[rows, guesses]
    distance = (found - places).abs().sum(-1).mean()
    overlap = generalised_overlap(to_corners(found), to_corners(places)).mean()
    return _CLASS * named + _DISTANCE * distance + _OVERLAP * (1 - overlap)


@torch.no_grad()
def match(scores: Tensor, boxes: Tensor, truth: Sequence[Things]) -> tuple[Tensor, Tensor]:
    """The row and the guess of each thing, in the order of things, such that the whole costs least."""
    from scipy.optimize import linear_sum_assignment

    counts = [each.classes.shape[0] for each in truth]
    guesses = []
    for row, cost in enumerate(_costs(scores, boxes, *_joined(truth)).split(counts, 2)):
        guess, thing = linear_sum_assignment(cost[row].numpy())
        guesses.append(torch.from_numpy(guess[thing.argsort()]))
    return torch.arange(len(truth)).repeat_interleave(torch.tensor(counts)), torch.cat(guesses)


def _costs(scores: Tensor, boxes: Tensor, classes: Tensor, places: Tensor) -> Tensor:
    """[rows, guesses, things], the things of all rows: one product is faster than one for each row."""
    distance = torch.cdist(boxes, places, p=1)
    overlap = generalised_overlap(to_corners(boxes)[:, :, None], to_corners(places))
    return -_CLASS * scores.softmax(-1)[:, :, classes] + _DISTANCE * distance - _OVERLAP * overlap


def _joined(truth: Sequence[Things]) -> tuple[Tensor, Tensor]:
    return torch.cat([each.classes for each in truth]), torch.cat([each.boxes for each in truth])
