"""Classification of a text, a pair of texts or an image."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from headwaiter.tasks.errors import (
    InputError,
    check_encodable,
    check_fraction,
    check_inputs,
    check_length,
    check_positive,
)
from headwaiter.tasks.forward_pass import ForwardPassTask, WithUsage
from headwaiter.tasks.images import ImageBudget, ImageReader
from headwaiter.tasks.messages import optional
from headwaiter.tasks.model import ImageInput, Model, read_images
from headwaiter.tasks.task import Submission, TaskMethod, UnaryMethod
from headwaiter.tasks.text import Tokenizer
from headwaiter.v1 import classification_pb2 as pb


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    index: int
    score: float


@dataclass(frozen=True, slots=True)
class Options:
    """Which labels to return: the best `top_k`, without those that score less than `threshold`."""

    top_k: int | None = None
    threshold: float | None = None

    def __post_init__(self) -> None:
        check_positive(self.top_k, "top_k")
        check_fraction(self.threshold, "threshold")


ALL_LABELS = Options()
PendingLabels = Pending[WithUsage[tuple[Label, ...]]]


class Classification(ForwardPassTask):
    def __init__(self, package: Package, engine: Engine[ForwardJob], settings: ModelSettings) -> None:
        super().__init__(package, engine, settings)
        manifest, limits = package.manifest, settings.limits
        text, image = manifest.preprocessing.text, manifest.preprocessing.image
        self._tokenizer = None if text is None else Tokenizer.open(package.folder, text)
        self._reader = None if image is None else ImageReader(image, manifest, limits)
        self._max_length, self._max_text_length = manifest.limits.get("length"), limits.text
        self._has_segments = any(port.name == "segments" for port in manifest.graphs["model"].inputs)
        self._label_names = manifest.labels or ()
        self._multi_label = manifest.multi_label

    def methods(self) -> Mapping[str, TaskMethod]:
        return {"Classify": UnaryMethod(self.parse, _format)}

    def warm_up(self) -> None:
        pending = self.submit_text("warm") if self._reader is None else self.submit_image(self.blank_image())
        pending.result()

    def parse(self, request: pb.ClassifyRequest, deadline: float | None) -> Submission[WithUsage[tuple[Label, ...]]]:
        check_inputs(request.input, "input")
        options = Options(optional(request, "top_k"), optional(request, "threshold"))
        budget = None
        if self._reader is not None:
            images = {f"input[{index}].image": item.image.data for index, item in enumerate(request.input)}
            budget = self._reader.budget(images)
        inputs = [
            self._parse_input(item, f"input[{index}]", options, deadline, budget)
            for index, item in enumerate(request.input)
        ]
        return Submission(inputs, cost=_preprocessing_cost(request))

    def submit_text(
        self,
        text: str,
        pair: str | None = None,
        *,
        options: Options = ALL_LABELS,
        deadline: float | None = None,
        field: str = "text",
    ) -> PendingLabels:
        started = time.monotonic()
        arrays = self.prepare_text(text, pair, field=field)
        return self.submit(arrays, partial(self.postprocess, options=options), started=started, deadline=deadline)

    def submit_image(
        self,
        image: bytes,
        *,
        options: Options = ALL_LABELS,
        deadline: float | None = None,
        field: str = "image",
        budget: ImageBudget | None = None,
    ) -> PendingLabels:
        started = time.monotonic()
        arrays = self.prepare_image(image, field=field, budget=budget)
        return self.submit(arrays, partial(self.postprocess, options=options), started=started, deadline=deadline)

    def _parse_input(
        self, item: pb.Input, field: str, options: Options, deadline: float | None, budget: ImageBudget | None
    ) -> Callable[[], PendingLabels]:
        content = item.WhichOneof("content")
        if content is None:
            raise InputError(f"{field} is empty; set image, text or text_pair", field=field)
        shared: Any = {"options": options, "deadline": deadline, "field": f"{field}.{content}"}
        if content == "image":
            return partial(self.submit_image, item.image.data, budget=budget, **shared)
        texts = (item.text,) if content == "text" else (item.text_pair.first, item.text_pair.second)
        return partial(self.submit_text, *texts, **shared)

    def prepare_text(self, text: str, pair: str | None = None, *, field: str = "text") -> Arrays:
        """Return `tokens` [length], and `segments` [length] if the model has segment ids."""
        if self._tokenizer is None:
            raise InputError(f"{field} is a text; this model classifies images", field=field)
        for part in (text, pair or ""):
            check_length(len(part), self._max_text_length, field, "characters")
            check_encodable(part, field)
        tokens, segments = self._tokenizer.encode_pair(text, pair)
        if not tokens:  # possible if the tokenizer adds no special tokens
            raise InputError(f"{field} has no tokens; this model requires at least 1", field=field, limit=1)
        if self._max_length is not None:
            check_length(len(tokens), self._max_length, field)
        arrays = {"tokens": np.array(tokens, np.int64)}
        return arrays | {"segments": np.array(segments, np.int64)} if self._has_segments else arrays

    def prepare_image(self, data: bytes, *, field: str = "image", budget: ImageBudget | None = None) -> Arrays:
        """Return `pixels` [3, height, width]."""
        if self._reader is None:
            raise InputError(f"{field} is an image; this model classifies texts", field=field)
        return {"pixels": self._reader.read(data, field, budget).pixels}

    def postprocess(self, outputs: Arrays, *, options: Options = ALL_LABELS) -> tuple[Label, ...]:
        """Return the labels in descending order of score."""
        scores, threshold = self._scores(outputs["scores"]), options.threshold
        ranking = np.argsort(-scores, kind="stable")[: options.top_k]
        return tuple(
            Label(self._label_names[index] if self._label_names else str(index), int(index), float(scores[index]))
            for index in ranking
            if threshold is None or scores[index] >= threshold
        )

    def _scores(self, logits: np.ndarray) -> NDArray[np.float64]:
        if self._multi_label or logits.size == 1:  # one logit is a binary classifier
            probabilities: NDArray[np.float64] = np.exp(-np.logaddexp(0, -logits.astype(np.float64)))
            return probabilities
        return softmax(logits)


def softmax(logits: np.ndarray) -> NDArray[np.float64]:
    """Softmax over the last axis, in float64."""
    exponentials: NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def _preprocessing_cost(request: pb.ClassifyRequest) -> int | None:
    """Number of characters, or None if there are images."""
    if any(item.HasField("image") for item in request.input):
        return None
    return sum(len(item.text) + len(item.text_pair.first) + len(item.text_pair.second) for item in request.input)


def _format(results: Sequence[WithUsage[tuple[Label, ...]]]) -> pb.ClassifyResponse:
    return pb.ClassifyResponse(
        results=[
            pb.ClassifyResult(
                labels=[pb.Label(name=label.name, index=label.index, score=label.score) for label in result.answer]
            )
            for result in results
        ]
    )


class ClassificationModel(Model[Classification]):
    def classify(
        self,
        *,
        text: Any = None,
        image: ImageInput | Sequence[ImageInput] | None = None,
        top_k: int | None = None,
        threshold: float | None = None,
    ) -> list[tuple[Label, ...]]:
        """Return the labels of each text, pair of texts (a tuple) or image, most likely first."""
        options = Options(top_k, threshold)
        if (text is None) == (image is None):
            raise InputError("exactly one of text and image is required", field="text")
        task = self.task
        if image is None:
            results = self.submit_all(
                _as_text_pairs(text),
                lambda pair, field: task.submit_text(*pair, options=options, field=field),
                "text",
            )
        else:
            results = self.submit_all(
                read_images(image), lambda data, field: task.submit_image(data, options=options, field=field), "image"
            )
        return [result.answer for result in results]


def _as_text_pairs(text: Any) -> list[tuple[str, ...]]:
    """Convert a text, a pair of texts (a tuple) or a list of either to a list of tuples."""
    items = text if isinstance(text, list) else [text]
    return [item if isinstance(item, tuple) else (item,) for item in items]
