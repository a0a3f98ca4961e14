from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import captioning_pb2 as pb
from service.ingress.calls import Call
from service.ingress.desk import Desk, account
from service.ingress.endpoint import Verbs
from service.ingress.verbs.words import decoding, hypotheses, streamed


def captioning(desk: Desk, model: Any) -> Verbs:
    task = model.task

    async def caption(request: pb.CaptionRequest, call: Call) -> Message:
        how, deadline = decoding(request.decoding), call.deadline
        submits = [
            partial(task.caption, image.data, how, prompt=request.prompt, deadline=deadline, field=f"image[{index}]")
            for index, image in enumerate(request.image)
        ]
        answers = await desk.answers("image", submits, characters=None)
        results = [pb.CaptionResult(hypotheses=hypotheses(each.hypotheses)) for each in answers]
        return account(desk, call, pb.CaptionResponse(results=results), answers)

    async def caption_stream(request: pb.CaptionStreamRequest, call: Call) -> AsyncGenerator[Message, None]:
        how = decoding(request.decoding)
        begin = partial(task.caption_stream, request.image.data, how, prompt=request.prompt, deadline=call.deadline)
        async for event in streamed(desk, call, pb.CaptionStreamResponse, begin, characters=None):
            yield event

    return {"Caption": caption, "CaptionStream": caption_stream}
