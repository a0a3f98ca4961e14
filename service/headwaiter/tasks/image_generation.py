"""Image generation from random noise."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headwaiter.engine.session import Arrays
from headwaiter.tasks.errors import InputError, check_positive, check_seed

Pixels = NDArray[np.uint8]


class ImageGeneration:
    """Noise sampling and postprocessing for image generators. Stateless, so threads may share it."""

    def __init__(self, noise_size: int, *, max_count: int) -> None:
        self._noise_size, self._max_count = noise_size, max_count

    def sample_noise(self, count: int, seed: int | None) -> list[Arrays]:
        """Return `noise` [size] for each image; it depends only on the seed and the index of the image."""
        check_positive(count, "count")
        check_seed(seed)
        if count > self._max_count:
            raise InputError(
                f"count is {count:,}; the limit is {self._max_count:,}", field="count", limit=self._max_count
            )
        generators = (np.random.default_rng(None if seed is None else (seed, index)) for index in range(count))
        return [{"noise": generator.standard_normal(self._noise_size, np.float32)} for generator in generators]

    def postprocess(self, outputs: Arrays) -> Pixels:
        """Convert `pixels` from [3, height, width] in 0 to 1 to uint8 [height, width, 3]."""
        channels_last = outputs["pixels"].astype(np.float32).transpose(1, 2, 0)
        pixels: Pixels = (255 * channels_last.clip(0, 1)).round().astype(np.uint8)
        return pixels


def png(pixels: Pixels) -> bytes:
    """Encode an image as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
