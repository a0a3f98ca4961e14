"""Classification: a text, a pair of texts or an image, and how much each label fits it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.engine.session import Arrays
from service.package import Package
from service.tasks.errors import InputError, demand_characters, demand_length, demand_positive, demand_share
from service.tasks.images import MAX_PIXELS, ImageReader
from service.tasks.text import MAX_TEXT, Tokenizer


@dataclass(frozen=True, slots=True)
class Label:
    name: str
    index: int
    score: float


class Classification:
    """Keeps no state between calls: threads may share it."""

    def __init__(self, package: Package, *, max_pixels: int = MAX_PIXELS, max_text: int = MAX_TEXT) -> None:
        manifest = package.manifest
        text, image = manifest.preprocessing.text, manifest.preprocessing.image
        self._tokenizer = None if text is None else Tokenizer.open(package.folder, text)
        self._reader = None if image is None else ImageReader(image, manifest, max_pixels)
        self._longest, self._longest_text = manifest.limits.get("length"), max_text
        self._segmented = any(port.name == "segments" for port in manifest.graphs["model"].inputs)
        self._names = manifest.labels or ()
        self._multi_label = manifest.multi_label

    def prepare_text(self, text: str, pair: str | None = None, *, field: str = "text") -> Arrays:
        """`tokens` [length], and `segments` where the model tells the texts of a pair apart."""
        if self._tokenizer is None:
            raise InputError(f"{field} is a text; this model classifies images", field=field)
        for each in (text, pair or ""):
            demand_length(len(each), self._longest_text, field, "characters")
            demand_characters(each, field)
        tokens, segments = self._tokenizer.encode_pair(text, pair)
        if not tokens:  # of a tokenizer that puts nothing around a text
            raise InputError(f"{field} has no tokens; this model needs one at least", field=field, limit=1)
        if self._longest is not None:
            demand_length(len(tokens), self._longest, field)
        arrays = {"tokens": np.array(tokens, np.int64)}
        return arrays | {"segments": np.array(segments, np.int64)} if self._segmented else arrays

    def prepare_image(self, data: bytes, *, field: str = "image") -> Arrays:
        """`pixels` [3, height, width]."""
        if self._reader is None:
            raise InputError(f"{field} is an image; this model classifies texts", field=field)
        return {"pixels": self._reader.read(data, field).pixels}

    def answer(self, outputs: Arrays, *, top_k: int | None = None, threshold: float | None = None) -> tuple[Label, ...]:
        """Best first; those that score less than the threshold are left out."""
        demand_choice(top_k, threshold)
        scores = self._scores(outputs["scores"])
        best = np.argsort(-scores, kind="stable")[:top_k]
        return tuple(
            Label(self._names[index] if self._names else str(index), int(index), float(scores[index]))
            for index in best
            if threshold is None or scores[index] >= threshold
        )

    def _scores(self, logits: np.ndarray) -> NDArray[np.float64]:
        if self._multi_label or logits.size == 1:  # a lone label is a yes or no
            chances: NDArray[np.float64] = np.exp(-np.logaddexp(0, -logits.astype(np.float64)))
            return chances
        return softmax(logits)


def softmax(logits: np.ndarray) -> NDArray[np.float64]:
    powers: NDArray[np.float64] = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def demand_choice(top_k: int | None, threshold: float | None) -> None:
    """What can be refused before the model has run."""
    demand_positive(top_k, "top_k")
    demand_share(threshold, "threshold")
