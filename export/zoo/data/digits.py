"""Handwritten digits, 8 × 8, from scikit-learn: 1,437 to learn from, 360 held out."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from export.zoo.data.base import Data
from export.zoo.data.batches import accuracy
from export.zoo.data.pictures import png, square
from export.zoo.model import ImageClassifier
from service.package import Preprocessing
from service.tasks.images import prepare

TRAINED = 1437
_GLIMPSED = 200


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images [1797, 8, 8] from 0 to 1 and answers; those from `TRAINED` on are held out."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    return (found.images[order] / 16).astype(np.float32), found.target[order]


class Digits(Data):
    name = "digits"
    learners = (ImageClassifier,)
    metric = "accuracy"
    chance = 0.1

    def __init__(self, image: int = 16) -> None:
        self._settings = square(image)
        images, self._answers = digits()
        self._pictures = [Image.fromarray(each) for each in (255 * images).round().astype(np.uint8)]
        self._image = image

    def sizes(self) -> dict[str, Any]:
        return {"image": self._image, "classes": 10}

    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(10)))

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=self._settings)

    @cached_property
    def _pixels(self) -> np.ndarray:
        return np.stack([prepare(each, self._settings) for each in self._pictures[:TRAINED]])

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        pixels, answers = self.draw(rng, batch)
        return functional.cross_entropy(model(pixels), answers)

    def glimpse(self, model: Any, rng: np.random.Generator) -> float:
        """Of digits there are few: these are among those to learn from."""
        pixels, answers = self.draw(rng, _GLIMPSED)
        return accuracy(model(pixels), answers)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor]:
        """Pixels, each moved by a pixel or so, and answers."""
        chosen = rng.integers(0, TRAINED, batch)
        moved = [np.roll(self._pixels[index], rng.integers(-1, 2, 2), (1, 2)) for index in chosen]
        return torch.from_numpy(np.stack(moved)), torch.from_numpy(self._answers[chosen])

    def measure(self, served: Any, most: int | None = None) -> float:
        held_out = range(TRAINED, len(self._pictures))[:most]
        found = served.classify(image=[png(self._pictures[index]) for index in held_out], top_k=1)
        right = [labels[0].index == self._answers[index] for labels, index in zip(found, held_out, strict=True)]
        return float(np.mean(right))
