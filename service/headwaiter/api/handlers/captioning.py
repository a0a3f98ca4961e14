from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor, attach_total_usage
from headwaiter.api.handlers.text_generation import hypothesis_messages, parse_decoding, stream_text
from headwaiter.v1 import captioning_pb2 as pb


def captioning(executor: RequestExecutor, model: Any) -> Handlers:
    task = model.task

    async def caption(request: pb.CaptionRequest, context: RequestContext) -> Message:
        options, deadline = parse_decoding(request.decoding), context.deadline
        submits = [
            partial(
                task.caption, image.data, options, prompt=request.prompt, deadline=deadline, field=f"image[{index}]"
            )
            for index, image in enumerate(request.image)
        ]
        outputs = await executor.execute("image", submits, cost=None)
        results = [pb.CaptionResult(hypotheses=hypothesis_messages(output.hypotheses)) for output in outputs]
        return attach_total_usage(executor, context, pb.CaptionResponse(results=results), outputs)

    async def caption_stream(
        request: pb.CaptionStreamRequest, context: RequestContext
    ) -> AsyncGenerator[Message, None]:
        options = parse_decoding(request.decoding)
        begin = partial(
            task.caption_stream, request.image.data, options, prompt=request.prompt, deadline=context.deadline
        )
        async for event in stream_text(executor, context, pb.CaptionStreamResponse, begin, cost=None):
            yield event

    return {"Caption": caption, "CaptionStream": caption_stream}
