"""Shape scenes: rendering, captions, box geometry, set matching and mean average precision."""

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

from headwaiter_export.zoo.data.boxes import center_to_corners, corners_to_center, generalized_iou, iou
from headwaiter_export.zoo.data.mean_average_precision import Detection, GroundTruth, mean_average_precision
from headwaiter_export.zoo.data.scenes import SceneCaptions, Scenes
from headwaiter_export.zoo.data.set_matching import TargetObjects, match_predictions, set_loss
from headwaiter_export.zoo.data.shape_scenes import (
    COLOURS,
    OUTLINES,
    Shape,
    compose,
    describe_scene,
    draw,
    is_unambiguous,
)
from headwaiter_export.zoo.registry import architectures


def shape(description: str, x: float, y: float) -> Shape:
    colour, kind = description.split()
    return Shape(kind, colour, x, y, radius=8.0, tilt=0.1)


def boxes(*leading: int) -> torch.Tensor:
    return torch.cat([torch.rand(*leading, 2), 0.05 + 0.3 * torch.rand(*leading, 2)], -1)


@pytest.mark.parametrize("kind", OUTLINES)
def test_shape_corners_enclose_drawing(kind: str) -> None:
    subject = Shape(kind, "red", 30.3, 33.8, radius=9.0, tilt=0.2)
    with_shape, background = (np.asarray(draw(np.random.default_rng(0), 64, shapes), int) for shapes in ([subject], []))
    rows, columns = np.nonzero((with_shape != background).any(2))
    drawn = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    np.testing.assert_allclose(subject.corners, drawn, atol=1.5)


@pytest.mark.parametrize("kind", OUTLINES)
@pytest.mark.parametrize("colour", COLOURS)
def test_draw_shape_has_its_colour(kind: str, colour: str) -> None:
    picture = draw(np.random.default_rng(0), 64, [Shape(kind, colour, 32, 32, radius=9.0, tilt=0.0)])
    middle = np.array(picture.getpixel((32, 32)))
    nearest = min(COLOURS, key=lambda name: float(np.abs(middle - COLOURS[name]).sum()))
    assert nearest == colour


def test_compose_shapes_inside_image_and_visible() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        shapes = compose(rng, 64, 4)
        corners = torch.tensor([item.corners for item in shapes])
        assert corners.min() >= 0
        assert corners.max() <= 64
        overlaps = iou(corners[:, None], corners)
        assert (overlaps - torch.eye(4)).max() < 0.5


@pytest.mark.parametrize(
    ("shapes", "caption"),
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
def test_describe_scene_follows_longer_axis(shapes: list[Shape], caption: str) -> None:
    assert describe_scene(shapes) == describe_scene(shapes[::-1]) == caption
    assert is_unambiguous(64, shapes)


@pytest.mark.parametrize(
    "centers",
    [
        [(10, 10), (40, 42)],  # diagonal
        [(10, 10), (13, 11)],  # too close
        [(10, 10), (50, 20), (52, 12)],  # the last two have no clear order
    ],
)
def test_is_unambiguous_unclear_order_false(centers: list[tuple[float, float]]) -> None:
    assert not is_unambiguous(64, [shape("red circle", *center) for center in centers])


def test_scene_captions_fit_length_and_vocabulary() -> None:
    data, rng = SceneCaptions(), np.random.default_rng(0)
    captions = [describe_scene(data.example(rng)[1]) for _ in range(200)]
    assert max(len(caption.split()) for caption in captions) == data.room - 2
    assert len({word for caption in captions for word in caption.split()}) == data.sizes()["vocabulary"] - 4


def test_sample_batch_same_seed_same_scenes() -> None:
    first, first_shapes = Scenes().sample_batch(np.random.default_rng(3), 4)
    second, second_shapes = Scenes().sample_batch(np.random.default_rng(3), 4)
    torch.testing.assert_close(first, second, atol=0, rtol=0)
    assert first_shapes == second_shapes
    assert first.shape == (4, 3, 64, 64)
    assert first.abs().max() <= 1


def test_iou_matches_transformers() -> None:
    torch.manual_seed(0)
    first, second = center_to_corners(boxes(20)), center_to_corners(boxes(30))
    torch.testing.assert_close(iou(first[:, None], second), box_iou(first, second)[0])
    torch.testing.assert_close(generalized_iou(first[:, None], second), generalized_box_iou(first, second))
    torch.testing.assert_close(center_to_corners(corners_to_center(first)), first)


def predictions(
    rows: int = 3, count: int = 5, classes: int = 4
) -> tuple[torch.Tensor, torch.Tensor, list[TargetObjects]]:
    torch.manual_seed(1)
    truth = [TargetObjects(torch.randint(classes, (size,)), boxes(size)) for size in range(1, rows + 1)]
    return torch.randn(rows, count, classes + 1), boxes(rows, count), truth


def test_match_predictions_cost_is_minimal() -> None:
    """Compared with all assignments of objects to predictions."""
    scores, predicted, truth = predictions()
    rows, matched = match_predictions(scores, predicted, truth)
    for row, targets in enumerate(truth):

        def cost(order: tuple[int, ...], row: int = row, targets: TargetObjects = targets) -> float:
            indices = list(order)
            probability = scores[row].softmax(-1)[indices, targets.classes].sum()
            distance = (predicted[row, indices] - targets.boxes).abs().sum()
            overlap = (
                generalized_box_iou(center_to_corners(predicted[row, indices]), center_to_corners(targets.boxes))
                .diag()
                .sum()
            )
            return float(-3 * probability + 5 * distance - 2 * overlap)

        best = min(permutations(range(scores.shape[1]), len(targets.boxes)), key=cost)
        assert tuple(matched[rows == row].tolist()) == best


def test_set_loss_matches_transformers() -> None:
    scores, predicted, truth = predictions()
    matcher = HungarianMatcher(class_cost=3, bbox_cost=5, giou_cost=2)
    criterion = ImageLoss(matcher, num_classes=4, eos_coef=0.2, losses=["labels", "boxes"])
    losses = criterion(
        {"logits": scores, "pred_boxes": predicted},
        [{"class_labels": targets.classes, "boxes": targets.boxes} for targets in truth],
    )
    expected = 3 * losses["loss_ce"] + 5 * losses["loss_bbox"] + 2 * losses["loss_giou"]
    torch.testing.assert_close(set_loss(scores, predicted, truth), expected)


def test_detr_permuted_queries_permute_predictions() -> None:
    """Permuting the queries permutes the predictions and leaves the loss unchanged."""
    torch.manual_seed(0)
    model_class = architectures()["detr"].model
    model = model_class(model_class.Sizes()).eval()
    order = torch.randperm(model.sizes.queries)
    pixels = torch.randn(2, 3, 64, 64)
    _, _, truth = predictions(rows=2)
    with torch.no_grad():
        scores, predicted = model(pixels)
        for parameter in (model.objects.queries, model.objects.anchors):
            parameter.copy_(parameter[order])
        other_scores, other_predicted = model(pixels)
    torch.testing.assert_close(other_scores, scores[:, order], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(other_predicted, predicted[:, order], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(other_scores, scores, atol=1e-3)
    torch.testing.assert_close(set_loss(other_scores, other_predicted, truth), set_loss(scores, predicted, truth))


HERE, NEAR, FAR = (0.0, 0.0, 10.0, 10.0), (0.0, 0.0, 10.0, 6.0), (30.0, 30.0, 40.0, 40.0)


@pytest.mark.parametrize(
    ("detections", "truth", "value"),
    [
        ([], [GroundTruth(0, "star", HERE)], 0.0),
        ([Detection(0, "star", 0.9, NEAR)], [GroundTruth(0, "star", HERE)], 1.0),  # IoU 0.6
        ([Detection(0, "star", 0.9, FAR)], [GroundTruth(0, "star", HERE)], 0.0),
        ([Detection(0, "circle", 0.9, HERE)], [GroundTruth(0, "star", HERE)], 0.0),
        ([Detection(1, "star", 0.9, HERE)], [GroundTruth(0, "star", HERE)], 0.0),
        # A second detection of the same object is wrong, but comes after full recall.
        ([Detection(0, "star", 0.9, HERE), Detection(0, "star", 0.8, NEAR)], [GroundTruth(0, "star", HERE)], 1.0),
        # A more confident false positive halves the precision.
        ([Detection(0, "star", 0.9, FAR), Detection(0, "star", 0.8, HERE)], [GroundTruth(0, "star", HERE)], 0.5),
        # One of two objects.
        ([Detection(0, "star", 0.9, HERE)], [GroundTruth(0, "star", HERE), GroundTruth(0, "star", FAR)], 0.5),
        # Correct, wrong, correct: precision 1 up to recall 0.5, then 2/3.
        (
            [Detection(0, "star", 0.9, HERE), Detection(1, "star", 0.8, HERE), Detection(0, "star", 0.7, FAR)],
            [GroundTruth(0, "star", HERE), GroundTruth(0, "star", FAR)],
            0.5 + 0.5 * 2 / 3,
        ),
        # Mean over classes.
        ([Detection(0, "star", 0.9, HERE)], [GroundTruth(0, "star", HERE), GroundTruth(0, "circle", FAR)], 0.5),
    ],
)
def test_mean_average_precision_known_values(
    detections: list[Detection], truth: list[GroundTruth], value: float
) -> None:
    assert mean_average_precision(detections, truth) == pytest.approx(value)
    assert mean_average_precision(detections[::-1], truth[::-1]) == pytest.approx(value)
