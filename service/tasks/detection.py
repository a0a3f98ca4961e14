"""Detection: an image, and what is where in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine.session import Arrays
from service.package import Package
from service.tasks.classification import softmax
from service.tasks.errors import demand_positive, demand_share
from service.tasks.images import MAX_PIXELS, ImageReader, Picture

THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Box:
    """In pixels of the image that was sent, upright; x to the right, y down."""

    name: str
    index: int
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float


@dataclass(frozen=True, slots=True)
class Detected:
    width: int
    height: int
    boxes: tuple[Box, ...]


class Detection:
    """Keeps no state between calls: threads may share it."""

    def __init__(self, package: Package, *, max_pixels: int = MAX_PIXELS) -> None:
        manifest = package.manifest
        assert manifest.preprocessing.image is not None
        self._reader = ImageReader(manifest.preprocessing.image, manifest, max_pixels)
        self._names = manifest.labels or ()

    def prepare_image(self, data: bytes, *, field: str = "image") -> Picture:
        return self._reader.read(data, field)

    def answer(
        self, outputs: Arrays, picture: Picture, *, threshold: float | None = None, max_boxes: int | None = None
    ) -> Detected:
        """Boxes that score more than the threshold, best first. `max_boxes` None is all of them."""
        demand_choice(threshold, max_boxes)
        found = softmax(outputs["scores"])[:, :-1]  # the last class means that there is nothing
        classes, scores = found.argmax(-1), found.max(-1)
        corners = _corners(outputs["boxes"], picture.width, picture.height)
        best = np.argsort(-scores, kind="stable")[:max_boxes]
        least = THRESHOLD if threshold is None else threshold
        return Detected(
            picture.width,
            picture.height,
            tuple(
                Box(self._name(classes[query]), int(classes[query]), float(scores[query]), *corners[query].tolist())
                for query in best
                if scores[query] > least
            ),
        )

    def _name(self, index: int) -> str:
        return self._names[index] if self._names else str(index)


def demand_choice(threshold: float | None, max_boxes: int | None) -> None:
    """What can be refused before the model has run."""
    demand_share(threshold, "threshold")
    demand_positive(max_boxes, "max_boxes")


def _corners(boxes: np.ndarray, width: int, height: int) -> NDArray[np.float64]:
    """From centre and size as shares of the image to corners in pixels, none of them outside."""
    centre, size = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    shares = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
    corners: NDArray[np.float64] = shares.clip(0, 1) * (width, height, width, height)
    return corners
