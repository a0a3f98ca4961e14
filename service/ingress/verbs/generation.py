from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import generation_pb2 as pb
from service.ingress.calls import Call
from service.ingress.desk import Desk, account
from service.ingress.endpoint import Verbs
from service.ingress.verbs.painting import painting
from service.ingress.verbs.words import decoding, hypotheses, streamed


def generation(desk: Desk, model: Any) -> Verbs:
    if model.manifest.noise is not None:
        return painting(desk, model)
    task = model.task

    async def generate(request: pb.GenerateRequest, call: Call) -> Message:
        how, deadline = decoding(request.decoding), call.deadline
        submits = [
            partial(task.generate, prompt, how, deadline=deadline, field=f"prompt[{index}]")
            for index, prompt in enumerate(request.prompt)
        ]
        answers = await desk.answers("prompt", submits, characters=sum(map(len, request.prompt)))
        results = [pb.GenerateResult(hypotheses=hypotheses(each.hypotheses)) for each in answers]
        return account(desk, call, pb.GenerateResponse(results=results), answers)

    async def generate_stream(request: pb.GenerateStreamRequest, call: Call) -> AsyncGenerator[Message, None]:
        how = decoding(request.decoding)
        begin = partial(task.generate_stream, request.prompt, how, deadline=call.deadline)
        async for event in streamed(desk, call, pb.GenerateStreamResponse, begin, characters=len(request.prompt)):
            yield event

    return {"Generate": generate, "GenerateStream": generate_stream}
