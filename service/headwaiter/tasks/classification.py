"""Classification of a text, a pair of texts or an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headwaiter.engine.session import Arrays
from headwaiter.engine.settings import DEFAULT_LIMITS, Limits
from headwaiter.package.manifest import Package
from headwaiter.tasks.errors import InputError, check_encodable, check_fraction, check_length, check_positive
from headwaiter.tasks.images import ImageReader
from headwaiter.tasks.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    index: int
    score: float


class Classification:
    """Preprocessing and postprocessing for classifiers. Stateless, so threads may share it."""

    def __init__(self, package: Package, limits: Limits = DEFAULT_LIMITS) -> None:
        manifest = package.manifest
        text, image = manifest.preprocessing.text, manifest.preprocessing.image
        self._tokenizer = None if text is None else Tokenizer.open(package.folder, text)
        self._reader = None if image is None else ImageReader(image, manifest, limits.pixels)
        self._max_length, self._max_text_length = manifest.limits.get("length"), limits.text
        self._has_segments = any(port.name == "segments" for port in manifest.graphs["model"].inputs)
        self._label_names = manifest.labels or ()
        self._multi_label = manifest.multi_label

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

    def prepare_image(self, data: bytes, *, field: str = "image") -> Arrays:
        """Return `pixels` [3, height, width]."""
        if self._reader is None:
            raise InputError(f"{field} is an image; this model classifies texts", field=field)
        return {"pixels": self._reader.read(data, field).pixels}

    def postprocess(
        self, outputs: Arrays, *, top_k: int | None = None, threshold: float | None = None
    ) -> tuple[Label, ...]:
        """Return the labels in descending order of score, without those that score less than `threshold`."""
        check_options(top_k, threshold)
        scores = self._scores(outputs["scores"])
        ranking = np.argsort(-scores, kind="stable")[:top_k]
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


def check_options(top_k: int | None, threshold: float | None) -> None:
    """Validate the options of `Classification.postprocess` before the model runs."""
    check_positive(top_k, "top_k")
    check_fraction(threshold, "threshold")
