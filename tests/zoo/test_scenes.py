"""Scenes: drawn, told, and what is found in them matched and judged."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from transformers.loss.loss_for_object_detection import (
    HungarianMatcher,
    ImageLoss,
    box_iou,
    generalized_box_iou,
)

from export.zoo.data.boxes import from_corners, generalised_overlap, overlap, to_corners
from export.zoo.data.drawing import COLOURS, OUTLINES, Shape, clear, compose, draw, tell
from export.zoo.data.precision import Found, There, mean_average_precision
from export.zoo.data.scenes import SceneCaptions, Scenes
from export.zoo.data.sets import Things, match, set_loss
from export.zoo.registry import systems


def shape(words: str, x: float, y: float) -> Shape:
    colour, kind = words.split()
    return Shape(kind, colour, x, y, radius=8.0, tilt=0.1)


def boxes(*leading: int) -> torch.Tensor:
    return torch.cat([torch.rand(*leading, 2), 0.05 + 0.3 * torch.rand(*leading, 2)], -1)


@pytest.mark.parametrize("kind", OUTLINES)
def test_the_box_fits_what_is_drawn(kind: str) -> None:
    one = Shape(kind, "red", 30.3, 33.8, radius=9.0, tilt=0.2)
    with_it, without = (np.asarray(draw(np.random.default_rng(0), 64, drawn), int) for drawn in ([one], []))
    rows, columns = np.nonzero((with_it != without).any(2))
    drawn = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    np.testing.assert_allclose(one.corners, drawn, atol=1.5)


@pytest.mark.parametrize("kind", OUTLINES)
@pytest.mark.parametrize("colour", COLOURS)
def test_a_shape_has_its_colour(kind: str, colour: str) -> None:
    picture = draw(np.random.default_rng(0), 64, [Shape(kind, colour, 32, 32, radius=9.0, tilt=0.0)])
    middle = np.array(picture.getpixel((32, 32)))
    nearest = min(COLOURS, key=lambda name: float(np.abs(middle - COLOURS[name]).sum()))
    assert nearest == colour


def test_composed_shapes_lie_within_the_picture_and_show() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        shapes = compose(rng, 64, 4)
        corners = torch.tensor([each.corners for each in shapes])
        assert corners.min() >= 0
        assert corners.max() <= 64
        shares = overlap(corners[:, None], corners)
        assert (shares - torch.eye(4)).max() < 0.5


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ([shape("red circle", 20, 20)], "a red circle"),
        ([shape("blue star", 50, 30), shape("red circle", 10, 20)], "a red circle left of a blue star"),
        ([shape("blue star", 30, 50), shape("red circle", 20, 10)], "a red circle above a blue star"),
        (
            [shape("blue star", 30, 40), shape("red circle", 20, 10), shape("red circle", 25, 60)],
            "a red circle above a blue star above a red circle",
        ),
    ],
)
def test_a_scene_is_told_the_way_it_extends(shapes: list[Shape], sentence: str) -> None:
    assert tell(shapes) == tell(shapes[::-1]) == sentence
    assert clear(64, shapes)


@pytest.mark.parametrize(
    "places",
    [
        [(10, 10), (40, 42)],  # as far to the right as down
        [(10, 10), (13, 11)],  # hardly to the right
        [(10, 10), (50, 20), (52, 12)],  # the last two beside each other
    ],
)
def test_scenes_that_can_be_told_in_two_ways_are_not_clear(places: list[tuple[float, float]]) -> None:
    assert not clear(64, [shape("red circle", *place) for place in places])


def test_captions_fit_their_room_and_their_words() -> None:
    data, rng = SceneCaptions(), np.random.default_rng(0)
    told = [tell(data.example(rng)[1]) for _ in range(200)]
    assert max(len(sentence.split()) for sentence in told) == data.room - 2
    assert len({word for sentence in told for word in sentence.split()}) == data.sizes()["vocabulary"] - 4


def test_the_same_draw_gives_the_same_scenes() -> None:
    first, shapes = Scenes().draw(np.random.default_rng(3), 4)
    again, same = Scenes().draw(np.random.default_rng(3), 4)
    torch.testing.assert_close(first, again, atol=0, rtol=0)
    assert shapes == same
    assert first.shape == (4, 3, 64, 64)
    assert first.abs().max() <= 1


def test_overlaps_are_those_of_transformers() -> None:
    torch.manual_seed(0)
    one, other = to_corners(boxes(20)), to_corners(boxes(30))
    torch.testing.assert_close(overlap(one[:, None], other), box_iou(one, other)[0])
    torch.testing.assert_close(generalised_overlap(one[:, None], other), generalized_box_iou(one, other))
    torch.testing.assert_close(to_corners(from_corners(one)), one)


def guesses(rows: int = 3, count: int = 5, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor, list[Things]]:
    torch.manual_seed(1)
    truth = [Things(torch.randint(classes, (things,)), boxes(things)) for things in range(1, rows + 1)]
    return torch.randn(rows, count, classes + 1), boxes(rows, count), truth


def test_no_other_matching_costs_less() -> None:
    """Tried are all: each thing with each guess."""
    scores, found, truth = guesses()
    rows, chosen = match(scores, found, truth)
    for row, things in enumerate(truth):

        def cost(order: tuple[int, ...], row: int = row, things: Things = things) -> float:
            picked = list(order)
            likely = scores[row].softmax(-1)[picked, things.classes].sum()
            apart = (found[row, picked] - things.boxes).abs().sum()
            shared = generalized_box_iou(to_corners(found[row, picked]), to_corners(things.boxes)).diag().sum()
            return float(-3 * likely + 5 * apart - 2 * shared)

        best = min(permutations(range(scores.shape[1]), len(things.boxes)), key=cost)
        assert tuple(chosen[rows == row].tolist()) == best


def test_the_set_loss_is_that_of_transformers() -> None:
    scores, found, truth = guesses()
    matcher = HungarianMatcher(class_cost=3, bbox_cost=5, giou_cost=2)
    judge = ImageLoss(matcher, num_classes=4, eos_coef=0.2, losses=["labels", "boxes"])
    parts = judge(
        {"logits": scores, "pred_boxes": found},
        [{"class_labels": each.classes, "boxes": each.boxes} for each in truth],
    )
    expected = 3 * parts["loss_ce"] + 5 * parts["loss_bbox"] + 2 * parts["loss_giou"]
    torch.testing.assert_close(set_loss(scores, found, truth), expected)


def test_guesses_are_a_set() -> None:
    """Queries in another order guess the same in another order, and learn the same."""
    torch.manual_seed(0)
    model = systems()["detr"].model
    one = model(model.Sizes()).eval()
    order = torch.randperm(one.sizes.queries)
    pixels = torch.randn(2, 3, 64, 64)
    _, _, truth = guesses(rows=2)
    with torch.no_grad():
        scores, found = one(pixels)
        for each in (one.objects.queries, one.objects.anchors):
            each.copy_(each[order])
        other_scores, other_found = one(pixels)
    torch.testing.assert_close(other_scores, scores[:, order], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(other_found, found[:, order], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(other_scores, scores, atol=1e-3)
    torch.testing.assert_close(set_loss(other_scores, other_found, truth), set_loss(scores, found, truth))


HERE, NEAR, FAR = (0.0, 0.0, 10.0, 10.0), (0.0, 0.0, 10.0, 6.0), (30.0, 30.0, 40.0, 40.0)


@pytest.mark.parametrize(
    ("found", "there", "value"),
    [
        ([], [There(0, "star", HERE)], 0.0),
        ([Found(0, "star", 0.9, NEAR)], [There(0, "star", HERE)], 1.0),  # overlaps by 0.6
        ([Found(0, "star", 0.9, FAR)], [There(0, "star", HERE)], 0.0),
        ([Found(0, "circle", 0.9, HERE)], [There(0, "star", HERE)], 0.0),
        ([Found(1, "star", 0.9, HERE)], [There(0, "star", HERE)], 0.0),
        # A thing is found once: the second find is wrong, but comes after all was found.
        ([Found(0, "star", 0.9, HERE), Found(0, "star", 0.8, NEAR)], [There(0, "star", HERE)], 1.0),
        # What is wrong and more certain halves the precision.
        ([Found(0, "star", 0.9, FAR), Found(0, "star", 0.8, HERE)], [There(0, "star", HERE)], 0.5),
        # One of two.
        ([Found(0, "star", 0.9, HERE)], [There(0, "star", HERE), There(0, "star", FAR)], 0.5),
        # Right, wrong, right: precision 1 until half is found, then 2/3.
        (
            [Found(0, "star", 0.9, HERE), Found(1, "star", 0.8, HERE), Found(0, "star", 0.7, FAR)],
            [There(0, "star", HERE), There(0, "star", FAR)],
            0.5 + 0.5 * 2 / 3,
        ),
        # The mean over names.
        ([Found(0, "star", 0.9, HERE)], [There(0, "star", HERE), There(0, "circle", FAR)], 0.5),
    ],
)
def test_mean_average_precision(found: list[Found], there: list[There], value: float) -> None:
    assert mean_average_precision(found, there) == pytest.approx(value)
    assert mean_average_precision(found[::-1], there[::-1]) == pytest.approx(value)
