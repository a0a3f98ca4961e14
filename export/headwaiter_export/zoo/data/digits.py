"""Handwritten digits, 8 × 8, from scikit-learn: 1,437 for training, 360 held out."""

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

from headwaiter.package.manifest import Preprocessing
from headwaiter.tasks.images import prepare
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batches import accuracy
from headwaiter_export.zoo.data.image_encoding import encode_png, square_image_settings
from headwaiter_export.zoo.model import ImageClassifier

TRAINING_EXAMPLES = 1437
_VALIDATION_EXAMPLES = 200


def digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images [1797, 8, 8] in [0, 1] and their labels; those from index `TRAINING_EXAMPLES` on are held out."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    order = np.random.default_rng(0).permutation(len(dataset.target))
    return (dataset.images[order] / 16).astype(np.float32), dataset.target[order]


class Digits(Dataset):
    name = "digits"
    compatible_models = (ImageClassifier,)
    metric = "accuracy"
    chance_level = 0.1

    def __init__(self, image: int = 16) -> None:
        self._settings = square_image_settings(image)
        images, self._targets = digits()
        self._pictures = [Image.fromarray(image_array) for image_array in (255 * images).round().astype(np.uint8)]
        self._image = image

    def sizes(self) -> dict[str, Any]:
        return {"image": self._image, "classes": 10}

    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, range(10)))

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=self._settings)

    @cached_property
    def _pixels(self) -> np.ndarray:
        return np.stack([prepare(picture, self._settings) for picture in self._pictures[:TRAINING_EXAMPLES]])

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        pixels, targets = self.sample_batch(rng, batch_size)
        return functional.cross_entropy(model(pixels), targets)

    def validate(self, model: Any, rng: np.random.Generator) -> float:
        """There are few digits, so validation uses training examples."""
        pixels, targets = self.sample_batch(rng, _VALIDATION_EXAMPLES)
        return accuracy(model(pixels), targets)

    def sample_batch(self, rng: np.random.Generator, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return randomly shifted pixels and their labels."""
        selected = rng.integers(0, TRAINING_EXAMPLES, batch_size)
        shifted = [np.roll(self._pixels[index], rng.integers(-1, 2, 2), (1, 2)) for index in selected]
        return torch.from_numpy(np.stack(shifted)), torch.from_numpy(self._targets[selected])

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        held_out = range(TRAINING_EXAMPLES, len(self._pictures))[:max_examples]
        results = served.classify(image=[encode_png(self._pictures[index]) for index in held_out], top_k=1)
        correct = [labels[0].index == self._targets[index] for labels, index in zip(results, held_out, strict=True)]
        return float(np.mean(correct))
