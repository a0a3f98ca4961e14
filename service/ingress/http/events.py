"""Streams as server-sent events: `delta` for each piece, then `done`; `error` where a stream breaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Send

from service.ingress.errors import FailedError
from service.ingress.http.encoding import dump, json_of

MEDIA_TYPE = "text/event-stream"
_AS_THEY_COME = {"cache-control": "no-store", "x-accel-buffering": "no"}


def wants_events(request: Request) -> bool:
    """Whoever takes JSON as well gets JSON."""
    accepted = {each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")}
    return MEDIA_TYPE in accepted and "application/json" not in accepted


class EventStream(StreamingResponse):
    """Closes what it reads from, however it ends: that frees what the model holds for it."""

    body_iterator: AsyncGenerator[bytes, None]

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def begin(responses: AsyncGenerator[Message, None]) -> EventStream:
    """Waits for the first event, so that what fails at once fails as any other call."""
    try:
        first = await anext(responses)
    except BaseException:
        await responses.aclose()
        raise
    return EventStream(_events(first, responses), media_type=MEDIA_TYPE, headers=_AS_THEY_COME)


async def _events(first: Message, responses: AsyncGenerator[Message, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(responses):
        yield _event(first)
        try:
            async for response in responses:
                yield _event(response)
        except FailedError as error:
            yield _written("error", error.failure.body())


def _event(response: Any) -> bytes:
    kind = response.WhichOneof("event")
    return _written(kind, json_of(response.done) if kind == "done" else {kind: getattr(response, kind)})


def _written(kind: str, content: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dump(content))
