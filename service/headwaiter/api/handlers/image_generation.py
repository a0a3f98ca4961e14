from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor, attach_total_usage
from headwaiter.tasks.image_generation import Pixels, png
from headwaiter.v1 import common_pb2
from headwaiter.v1 import generation_pb2 as pb


def image_generation(executor: RequestExecutor, model: Any) -> Handlers:
    async def generate_images(request: pb.GenerateImagesRequest, context: RequestContext) -> Message:
        count = request.count if request.HasField("count") else 1
        seed = request.seed if request.HasField("seed") else None
        submits = [
            partial(model.submit, noise, deadline=context.deadline) for noise in model.task.sample_noise(count, seed)
        ]
        outputs = await executor.execute("count", submits, cost=0)
        images = await asyncio.to_thread(_encode_images, [output.answer for output in outputs])
        return attach_total_usage(executor, context, pb.GenerateImagesResponse(images=images), outputs)

    return {"GenerateImages": generate_images}


def _encode_images(images: list[Pixels]) -> list[common_pb2.Image]:
    return [common_pb2.Image(data=png(pixels)) for pixels in images]
