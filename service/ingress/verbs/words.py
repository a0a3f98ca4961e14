"""What translation, captioning and generation have in common: decoding, hypotheses, streams."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import common_pb2
from service.ingress.calls import Call
from service.ingress.desk import Desk, put_account
from service.tasks.decoding import Decoding
from service.tasks.results import Hypothesis
from service.tasks.words import WordStream


def decoding(message: common_pb2.Decoding) -> Decoding:
    """Only what was stated."""
    return Decoding(**{field.name: value for field, value in message.ListFields()})


def hypotheses(found: Iterable[Hypothesis]) -> list[common_pb2.Hypothesis]:
    return [common_pb2.Hypothesis(text=one.text, score=one.score) for one in found]


async def streamed(
    desk: Desk, call: Call, response: type[Any], begin: Callable[[], WordStream], *, characters: int | None
) -> AsyncGenerator[Message, None]:
    """Deltas as they fall, then `done`."""
    stream = await desk.prepared(begin, characters)
    try:
        last = None
        async with aclosing(stream.__aiter__()) as pieces:  # type: ignore[type-var]
            async for piece in pieces:
                last = _note_time(desk, call, last)
                yield response(delta=piece)
        words = stream.result()
    finally:
        stream.cancel()
    call.usage, call.timing = words.usage, words.timing
    done = put_account(desk, call, common_pb2.Done(text=words.text, score=words.score))
    yield response(done=done)


def _note_time(desk: Desk, call: Call, last: float | None) -> float:
    now = time.monotonic()
    if last is None:
        desk.times.first_token(call.method, now - call.begun)
    else:
        desk.times.between_tokens(call.method, now - last)
    return now
