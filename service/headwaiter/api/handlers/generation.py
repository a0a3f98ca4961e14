from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor, attach_total_usage
from headwaiter.api.handlers.image_generation import image_generation
from headwaiter.api.handlers.text_generation import hypothesis_messages, parse_decoding, stream_text
from headwaiter.v1 import generation_pb2 as pb


def generation(executor: RequestExecutor, model: Any) -> Handlers:
    if model.manifest.noise is not None:
        return image_generation(executor, model)
    task = model.task

    async def generate(request: pb.GenerateRequest, context: RequestContext) -> Message:
        options, deadline = parse_decoding(request.decoding), context.deadline
        submits = [
            partial(task.generate, prompt, options, deadline=deadline, field=f"prompt[{index}]")
            for index, prompt in enumerate(request.prompt)
        ]
        outputs = await executor.execute("prompt", submits, cost=sum(map(len, request.prompt)))
        results = [pb.GenerateResult(hypotheses=hypothesis_messages(output.hypotheses)) for output in outputs]
        return attach_total_usage(executor, context, pb.GenerateResponse(results=results), outputs)

    async def generate_stream(
        request: pb.GenerateStreamRequest, context: RequestContext
    ) -> AsyncGenerator[Message, None]:
        options = parse_decoding(request.decoding)
        begin = partial(task.generate_stream, request.prompt, options, deadline=context.deadline)
        async for event in stream_text(executor, context, pb.GenerateStreamResponse, begin, cost=len(request.prompt)):
            yield event

    return {"Generate": generate, "GenerateStream": generate_stream}
