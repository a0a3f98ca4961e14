"""Image generation from random noise."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from headwaiter.engine.batcher import ForwardJob
from headwaiter.engine.futures import Pending
from headwaiter.engine.session import Arrays
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Package
from headwaiter.tasks.errors import InputError, check_positive, check_seed
from headwaiter.tasks.forward_pass import ForwardPassTask, WithUsage
from headwaiter.tasks.messages import optional
from headwaiter.tasks.model import Model
from headwaiter.tasks.task import Submission, TaskMethod, UnaryMethod
from headwaiter.v1 import common_pb2
from headwaiter.v1 import generation_pb2 as pb

Pixels = NDArray[np.uint8]


class ImageGeneration(ForwardPassTask):
    def __init__(self, package: Package, engine: Engine[ForwardJob], settings: ModelSettings) -> None:
        super().__init__(package, engine, settings)
        assert self.manifest.noise is not None
        self._noise_size, self._max_count = self.manifest.noise, settings.limits.images

    def methods(self) -> Mapping[str, TaskMethod]:
        return {"GenerateImages": UnaryMethod(self.parse, _format, formats_off_loop=True)}

    def warm_up(self) -> None:
        (noise,) = self.sample_noise(1, 0)
        self.submit_noise(noise).result()

    def parse(self, request: pb.GenerateImagesRequest, deadline: float | None) -> Submission[WithUsage[Pixels]]:
        samples = self.sample_noise(optional(request, "count", 1), optional(request, "seed"))
        return Submission([partial(self.submit_noise, noise, deadline=deadline) for noise in samples], cost=0)

    def submit_noise(self, noise: Arrays, *, deadline: float | None = None) -> Pending[WithUsage[Pixels]]:
        return self.submit(noise, self.postprocess, started=time.monotonic(), deadline=deadline)

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


def _format(results: Sequence[WithUsage[Pixels]]) -> pb.GenerateImagesResponse:
    return pb.GenerateImagesResponse(images=[common_pb2.Image(data=png(result.answer)) for result in results])


class ImageGenerationModel(Model[ImageGeneration]):
    def generate_images(self, count: int = 1, *, seed: int | None = None) -> list[bytes]:
        """Generate `count` PNG files. With the same seed, the first images are the same for every `count`."""
        samples = self.task.sample_noise(count, seed)
        results = self.submit_all(samples, lambda noise, _: self.task.submit_noise(noise), "count")
        return [png(result.answer) for result in results]
