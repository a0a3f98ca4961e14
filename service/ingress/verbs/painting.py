from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import common_pb2
from headwaiter.v1 import generation_pb2 as pb
from service.ingress.calls import Call
from service.ingress.desk import Desk, account
from service.ingress.endpoint import Verbs
from service.tasks.painting import Pixels, png


def painting(desk: Desk, model: Any) -> Verbs:
    async def generate_images(request: pb.GenerateImagesRequest, call: Call) -> Message:
        count = request.count if request.HasField("count") else 1
        seed = request.seed if request.HasField("seed") else None
        submits = [partial(model.submit, each, deadline=call.deadline) for each in model.task.draw(count, seed)]
        answers = await desk.answers("count", submits, characters=0)
        images = await asyncio.to_thread(_images, [each.answer for each in answers])
        return account(desk, call, pb.GenerateImagesResponse(images=images), answers)

    return {"GenerateImages": generate_images}


def _images(found: list[Pixels]) -> list[common_pb2.Image]:
    return [common_pb2.Image(data=png(pixels)) for pixels in found]
