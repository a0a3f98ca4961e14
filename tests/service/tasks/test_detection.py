"""Boxes match the post-processing of transformers, in pixels of the input image."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, DetrForObjectDetection

from headwaiter.engine.batcher import Batcher, ForwardJob
from headwaiter.engine.session import Arrays, Session
from headwaiter.tasks.detection import Detection, Options
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.images import PreparedImage
from tests.checkpoints_kit import CLASSES
from tests.conftest import Packages
from tests.images_kit import random_png
from tests.task_kit import open_task

SIZES = [(64, 48), (48, 64), (200, 57), (33, 90), (64, 48)]


@pytest.fixture
def task(packages: Packages) -> Detection:
    return open_task(Detection, packages("detr", "fp32").package)


@pytest.mark.parametrize("threshold", [0.0, 0.3, None, 0.9])
def test_detect_matches_transformers(packages: Packages, threshold: float | None) -> None:
    exported = packages("detr", "fp32")
    folder, package = exported.checkpoint, exported.package
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    original = DetrForObjectDetection.from_pretrained(folder).eval()
    task, batcher = open_task(Detection, package), Batcher(Session(package, threads=1))
    batcher.start()
    files = [random_png(*size) for size in SIZES]
    prepared = [task.prepare_image(data) for data in files]
    jobs = [ForwardJob({"pixels": image.pixels}) for image in prepared]
    for job in jobs:
        batcher.submit(job)
    for data, prepared_image, job in zip(files, prepared, jobs, strict=True):
        detections = task.postprocess(job.future.result(60).outputs, prepared_image, options=Options(threshold))
        image = Image.open(io.BytesIO(data))
        with torch.no_grad():
            outputs = original(**processor(image, return_tensors="pt"))
        options = {} if threshold is None else {"threshold": threshold}
        (expected,) = processor.post_process_object_detection(
            outputs, target_sizes=[(image.height, image.width)], **options
        )
        ranking = expected["scores"].argsort(descending=True)
        assert (detections.width, detections.height) == image.size
        assert [box.index for box in detections.boxes] == expected["labels"][ranking].tolist()
        assert [box.name for box in detections.boxes] == [CLASSES[box.index] for box in detections.boxes]
        assert np.allclose([box.score for box in detections.boxes], expected["scores"][ranking], atol=1e-5)
        corners = expected["boxes"][ranking].numpy().clip(0, [image.width, image.height] * 2)
        actual = np.array([(box.x_min, box.y_min, box.x_max, box.y_max) for box in detections.boxes]).reshape(-1, 4)
        assert np.allclose(actual, corners, atol=2e-5 * max(image.size))
    batcher.close()


def logits(*rows: list[float]) -> np.ndarray:
    """Return logits whose softmax gives these class probabilities, and the remainder for "no object"."""
    probabilities = np.array(rows, np.float32)
    return np.log(np.concatenate([probabilities, 1 - probabilities.sum(-1, keepdims=True)], -1) + 1e-9)


QUERIES: Arrays = {
    "scores": logits([0.1, 0.6, 0, 0, 0], [0, 0, 0.05, 0.01, 0], [0.9, 0, 0, 0, 0], [0, 0, 0, 0, 0.6]),
    "boxes": np.array([[0.5, 0.5, 0.2, 0.4], [0.5, 0.5, 1, 1], [0.9, 0.1, 0.5, 0.5], [0.25, 0.5, 0.5, 1]], np.float32),
}
IMAGE = PreparedImage(np.zeros((3, 1, 1), np.float32), width=200, height=100)


def test_postprocess_sorts_by_score_and_clips_boxes(task: Detection) -> None:
    boxes = task.postprocess(QUERIES, IMAGE).boxes
    assert [(box.name, box.index) for box in boxes] == [("starter", 0), ("main", 1), ("bill", 4)]
    assert [box.score for box in boxes] == pytest.approx([0.9, 0.6, 0.6])
    corners = [(box.x_min, box.y_min, box.x_max, box.y_max) for box in boxes]
    assert np.allclose(corners, [(130, 0, 200, 35), (80, 30, 120, 70), (0, 0, 100, 100)], atol=1e-4)


def test_postprocess_max_boxes_and_threshold_select_boxes(task: Detection) -> None:
    assert [box.index for box in task.postprocess(QUERIES, IMAGE, options=Options(max_boxes=2)).boxes] == [0, 1]
    assert len(task.postprocess(QUERIES, IMAGE, options=Options(threshold=0.0)).boxes) == 4
    assert len(task.postprocess(QUERIES, IMAGE, options=Options(threshold=0.7)).boxes) == 1
    assert task.postprocess(QUERIES, IMAGE, options=Options(threshold=1.0)).boxes == ()


def test_prepare_image_applies_exif_orientation(task: Detection) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = task.prepare_image(random_png(64, 48, exif=exif))
    assert (image.width, image.height) == (48, 64)
    assert image.pixels.shape[1] > image.pixels.shape[2]


@pytest.mark.parametrize(
    ("options", "field"),
    [({"threshold": 2.0}, "threshold"), ({"threshold": float("nan")}, "threshold"), ({"max_boxes": 0}, "max_boxes")],
    ids=str,
)
def test_postprocess_invalid_option_is_rejected(task: Detection, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"^{field} is .* must be") as caught:
        task.postprocess(QUERIES, IMAGE, options=Options(**options))
    assert caught.value.field == field


def test_prepare_image_invalid_image_is_rejected(packages: Packages, task: Detection) -> None:
    with pytest.raises(InputError, match=r"^image\[1\] is not an image"):
        task.prepare_image(b"soup", field="image[1]")
    with pytest.raises(InputError, match="too narrow"):
        task.prepare_image(random_png(1, 900))
    small = open_task(Detection, packages("detr", "fp32").package, limits={"pixels": 100})
    with pytest.raises(InputError, match=r"^image has 11 × 10 pixels; the limit is 100 "):
        small.prepare_image(random_png(11, 10))
