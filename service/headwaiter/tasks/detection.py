"""Object detection in images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwaiter.engine.session import Arrays
from headwaiter.engine.settings import DEFAULT_LIMITS, Limits
from headwaiter.package.manifest import Package
from headwaiter.tasks.classification import softmax
from headwaiter.tasks.errors import check_fraction, check_positive
from headwaiter.tasks.images import ImageReader, PreparedImage

DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Box:
    """A detected object. Coordinates are in pixels of the input image after EXIF rotation, from its top left corner."""

    name: str
    index: int
    score: float
    x_min: float
    y_min: float
    x_max: float
    y_max: float


@dataclass(frozen=True, slots=True)
class Detections:
    width: int
    height: int
    boxes: tuple[Box, ...]


class Detection:
    """Preprocessing and postprocessing for detectors. Stateless, so threads may share it."""

    def __init__(self, package: Package, limits: Limits = DEFAULT_LIMITS) -> None:
        manifest = package.manifest
        assert manifest.preprocessing.image is not None
        self._reader = ImageReader(manifest.preprocessing.image, manifest, limits.pixels)
        self._label_names = manifest.labels or ()

    def prepare_image(self, data: bytes, *, field: str = "image") -> PreparedImage:
        return self._reader.read(data, field)

    def postprocess(
        self, outputs: Arrays, image: PreparedImage, *, threshold: float | None = None, max_boxes: int | None = None
    ) -> Detections:
        """Return at most `max_boxes` (default: all) boxes that score more than `threshold`, best first."""
        check_options(threshold, max_boxes)
        probabilities = softmax(outputs["scores"])[:, :-1]  # the last class is "no object"
        classes, scores = probabilities.argmax(-1), probabilities.max(-1)
        corners = _corners(outputs["boxes"], image.width, image.height)
        ranking = np.argsort(-scores, kind="stable")[:max_boxes]
        minimum = DEFAULT_THRESHOLD if threshold is None else threshold
        return Detections(
            image.width,
            image.height,
            tuple(
                Box(
                    self._label_name(classes[query]),
                    int(classes[query]),
                    float(scores[query]),
                    *corners[query].tolist(),
                )
                for query in ranking
                if scores[query] > minimum
            ),
        )

    def _label_name(self, index: int) -> str:
        return self._label_names[index] if self._label_names else str(index)


def check_options(threshold: float | None, max_boxes: int | None) -> None:
    """Validate the options of `Detection.postprocess` before the model runs."""
    check_fraction(threshold, "threshold")
    check_positive(max_boxes, "max_boxes")


def _corners(boxes: np.ndarray, width: int, height: int) -> NDArray[np.float64]:
    """Convert relative (centre, size) boxes to corners in pixels, clipped to the image."""
    centre, size = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    relative = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
    corners: NDArray[np.float64] = relative.clip(0, 1) * (width, height, width, height)
    return corners
