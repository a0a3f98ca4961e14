"""Object detection in images."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter.engine.batcher import ForwardJob
from headwaiter.engine.futures import Pending
from headwaiter.engine.session import Arrays
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Package
from headwaiter.tasks.classification import softmax
from headwaiter.tasks.errors import check_fraction, check_inputs, check_positive
from headwaiter.tasks.forward_pass import ForwardPassTask, WithUsage
from headwaiter.tasks.images import ImageBudget, ImageReader, PreparedImage
from headwaiter.tasks.messages import optional
from headwaiter.tasks.model import ImageInput, Model, read_images
from headwaiter.tasks.task import Submission, TaskMethod, UnaryMethod
from headwaiter.v1 import detection_pb2 as pb

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


@dataclass(frozen=True, slots=True)
class Options:
    """Which boxes to return: at most `max_boxes` (default: all), of those that score more than `threshold`."""

    threshold: float | None = None
    max_boxes: int | None = None

    def __post_init__(self) -> None:
        check_fraction(self.threshold, "threshold")
        check_positive(self.max_boxes, "max_boxes")


DEFAULT_OPTIONS = Options()


class Detection(ForwardPassTask):
    def __init__(self, package: Package, engine: Engine[ForwardJob], settings: ModelSettings) -> None:
        super().__init__(package, engine, settings)
        image = self.manifest.preprocessing.image
        assert image is not None
        self._reader = ImageReader(image, self.manifest, settings.limits)
        self._label_names = self.manifest.labels or ()

    def methods(self) -> Mapping[str, TaskMethod]:
        return {"Detect": UnaryMethod(self.parse, _format)}

    def warm_up(self) -> None:
        self.submit_image(self.blank_image()).result()

    def parse(self, request: pb.DetectRequest, deadline: float | None) -> Submission[WithUsage[Detections]]:
        check_inputs(request.image, "image")
        options = Options(optional(request, "threshold"), optional(request, "max_boxes"))
        images = {f"image[{index}]": image.data for index, image in enumerate(request.image)}
        shared: Any = {"options": options, "deadline": deadline, "budget": self._reader.budget(images)}
        inputs = [partial(self.submit_image, image, field=field, **shared) for field, image in images.items()]
        return Submission(inputs, cost=None)

    def submit_image(
        self,
        image: bytes,
        *,
        options: Options = DEFAULT_OPTIONS,
        deadline: float | None = None,
        field: str = "image",
        budget: ImageBudget | None = None,
    ) -> Pending[WithUsage[Detections]]:
        started = time.monotonic()
        prepared = self.prepare_image(image, field=field, budget=budget)
        postprocess = partial(self.postprocess, image=prepared, options=options)
        return self.submit({"pixels": prepared.pixels}, postprocess, started=started, deadline=deadline)

    def prepare_image(self, data: bytes, *, field: str = "image", budget: ImageBudget | None = None) -> PreparedImage:
        return self._reader.read(data, field, budget)

    def postprocess(self, outputs: Arrays, image: PreparedImage, *, options: Options = DEFAULT_OPTIONS) -> Detections:
        """Return the boxes in descending order of score."""
        probabilities = softmax(outputs["scores"])[:, :-1]  # the last class is "no object"
        classes, scores = probabilities.argmax(-1), probabilities.max(-1)
        corners = _corners(outputs["boxes"], image.width, image.height)
        ranking = np.argsort(-scores, kind="stable")[: options.max_boxes]
        minimum = DEFAULT_THRESHOLD if options.threshold is None else options.threshold
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


def _corners(boxes: np.ndarray, width: int, height: int) -> NDArray[np.float64]:
    """Convert relative (centre, size) boxes to corners in pixels, clipped to the image."""
    centre, size = boxes[:, :2].astype(np.float64), boxes[:, 2:].astype(np.float64)
    relative = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
    corners: NDArray[np.float64] = relative.clip(0, 1) * (width, height, width, height)
    return corners


def _format(results: Sequence[WithUsage[Detections]]) -> pb.DetectResponse:
    return pb.DetectResponse(results=[_result(result.answer) for result in results])


def _result(detections: Detections) -> pb.DetectResult:
    boxes = [pb.Box(**asdict(box)) for box in detections.boxes]
    return pb.DetectResult(width=detections.width, height=detections.height, boxes=boxes)


class DetectionModel(Model[Detection]):
    def detect(
        self, image: ImageInput | Sequence[ImageInput], *, threshold: float | None = None, max_boxes: int | None = None
    ) -> list[Detections]:
        """Return the boxes of each image in pixels, most likely first."""
        options = Options(threshold, max_boxes)
        results = self.submit_all(
            read_images(image), lambda data, field: self.task.submit_image(data, options=options, field=field), "image"
        )
        return [result.answer for result in results]
