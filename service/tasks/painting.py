"""Painting: images out of noise."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from service.engine.session import Arrays
from service.tasks.errors import InputError, demand_positive, demand_seed

Pixels = NDArray[np.uint8]


class Painting:
    """Keeps no state between calls: threads may share it."""

    def __init__(self, noise: int, *, most: int) -> None:
        self._noise, self._most = noise, most

    def draw(self, count: int, seed: int | None) -> list[Arrays]:
        """`noise` [size] for each image. An image follows from the seed and its index, whatever the count."""
        demand_positive(count, "count")
        demand_seed(seed)
        if count > self._most:
            raise InputError(f"count is {count:,}; the limit is {self._most:,}", field="count", limit=self._most)
        sources = (np.random.default_rng(None if seed is None else (seed, index)) for index in range(count))
        return [{"noise": source.standard_normal(self._noise, np.float32)} for source in sources]

    def answer(self, outputs: Arrays) -> Pixels:
        """[height, width, 3]."""
        shares = outputs["pixels"].astype(np.float32).transpose(1, 2, 0)
        pixels: Pixels = (255 * shares.clip(0, 1)).round().astype(np.uint8)
        return pixels


def png(pixels: Pixels) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
