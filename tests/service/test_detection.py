"""Boxes are those of DETR's own post-processing, in pixels of the image that was sent."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, DetrForObjectDetection

from service.engine.batcher import Batcher, PassJob
from service.engine.session import Arrays, Session
from service.tasks.detection import Detection
from service.tasks.errors import InputError
from service.tasks.images import Picture
from tests.checkpoints_kit import CLASSES
from tests.conftest import Packages
from tests.images_kit import noise

SIZES = [(64, 48), (48, 64), (200, 57), (33, 90), (64, 48)]


@pytest.fixture
def task(packages: Packages) -> Detection:
    return Detection(packages("detr", "fp32").package)


@pytest.mark.parametrize("threshold", [0.0, 0.3, None, 0.9])
def test_boxes_as_transformers(packages: Packages, threshold: float | None) -> None:
    exported = packages("detr", "fp32")
    folder, package = exported.checkpoint, exported.package
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    original = DetrForObjectDetection.from_pretrained(folder).eval()
    task, batcher = Detection(package), Batcher(Session(package, threads=1))
    batcher.start()
    files = [noise(*size) for size in SIZES]
    pictures = [task.prepare_image(data) for data in files]
    jobs = [PassJob({"pixels": picture.pixels}) for picture in pictures]
    for job in jobs:
        batcher.submit(job)
    for data, picture, job in zip(files, pictures, jobs, strict=True):
        found = task.answer(job.future.result(60).outputs, picture, threshold=threshold)
        image = Image.open(io.BytesIO(data))
        with torch.no_grad():
            outputs = original(**processor(image, return_tensors="pt"))
        least = {} if threshold is None else {"threshold": threshold}
        (expected,) = processor.post_process_object_detection(
            outputs, target_sizes=[(image.height, image.width)], **least
        )
        order = expected["scores"].argsort(descending=True)
        assert (found.width, found.height) == image.size
        assert [box.index for box in found.boxes] == expected["labels"][order].tolist()
        assert [box.name for box in found.boxes] == [CLASSES[box.index] for box in found.boxes]
        assert np.allclose([box.score for box in found.boxes], expected["scores"][order], atol=1e-5)
        corners = expected["boxes"][order].numpy().clip(0, [image.width, image.height] * 2)
        ours = np.array([(box.x_min, box.y_min, box.x_max, box.y_max) for box in found.boxes]).reshape(-1, 4)
        assert np.allclose(ours, corners, atol=2e-5 * max(image.size))
    batcher.close()


def logits(*rows: list[float]) -> np.ndarray:
    """Of the classes, then of nothing; in logarithms, so that the shares are the numbers written here."""
    shares = np.array(rows, np.float32)
    return np.log(np.concatenate([shares, 1 - shares.sum(-1, keepdims=True)], -1) + 1e-9)


QUERIES: Arrays = {
    "scores": logits([0.1, 0.6, 0, 0, 0], [0, 0, 0.05, 0.01, 0], [0.9, 0, 0, 0, 0], [0, 0, 0, 0, 0.6]),
    "boxes": np.array([[0.5, 0.5, 0.2, 0.4], [0.5, 0.5, 1, 1], [0.9, 0.1, 0.5, 0.5], [0.25, 0.5, 0.5, 1]], np.float32),
}
PICTURE = Picture(np.zeros((3, 1, 1), np.float32), width=200, height=100)


def test_best_first_within_the_image(task: Detection) -> None:
    boxes = task.answer(QUERIES, PICTURE).boxes
    assert [(box.name, box.index) for box in boxes] == [("starter", 0), ("main", 1), ("bill", 4)]
    assert [box.score for box in boxes] == pytest.approx([0.9, 0.6, 0.6])
    corners = [(box.x_min, box.y_min, box.x_max, box.y_max) for box in boxes]
    assert np.allclose(corners, [(130, 0, 200, 35), (80, 30, 120, 70), (0, 0, 100, 100)], atol=1e-4)


def test_max_boxes_and_threshold(task: Detection) -> None:
    assert [box.index for box in task.answer(QUERIES, PICTURE, max_boxes=2).boxes] == [0, 1]
    assert len(task.answer(QUERIES, PICTURE, threshold=0.0).boxes) == 4
    assert len(task.answer(QUERIES, PICTURE, threshold=0.7).boxes) == 1
    assert task.answer(QUERIES, PICTURE, threshold=1.0).boxes == ()


def test_the_image_is_the_upright_one(task: Detection) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = task.prepare_image(noise(64, 48, exif=exif))
    assert (picture.width, picture.height) == (48, 64)
    assert picture.pixels.shape[1] > picture.pixels.shape[2]


@pytest.mark.parametrize(
    ("choice", "field"),
    [({"threshold": 2.0}, "threshold"), ({"threshold": float("nan")}, "threshold"), ({"max_boxes": 0}, "max_boxes")],
    ids=str,
)
def test_impossible_choices(task: Detection, choice: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"^{field} is .* must be") as caught:
        task.answer(QUERIES, PICTURE, **choice)
    assert caught.value.field == field


def test_bad_images_are_refused(packages: Packages, task: Detection) -> None:
    with pytest.raises(InputError, match=r"^image\[1\] is not an image"):
        task.prepare_image(b"soup", field="image[1]")
    with pytest.raises(InputError, match="too narrow"):
        task.prepare_image(noise(1, 900))
    small = Detection(packages("detr", "fp32").package, max_pixels=100)
    with pytest.raises(InputError, match=r"^image has 11 × 10 pixels; the limit is 100 in all$"):
        small.prepare_image(noise(11, 10))
