"""Streams responses as server-sent events: `delta` events, then `done`, or `error` if the stream fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Send

from headwaiter.api.errors import FailedError
from headwaiter.api.http.encoding import dump, to_json_value

MEDIA_TYPE = "text/event-stream"
_UNBUFFERED_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


def wants_events(request: Request) -> bool:
    """Whether the client accepts server-sent events but not JSON."""
    media_ranges = request.headers.get("accept", "").split(",")
    accepted = {media_range.partition(";")[0].strip().lower() for media_range in media_ranges}
    return MEDIA_TYPE in accepted and "application/json" not in accepted


class EventStream(StreamingResponse):
    """Always closes the iterator that it reads from, which releases the model's resources for the stream."""

    body_iterator: AsyncGenerator[bytes, None]

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def begin(responses: AsyncGenerator[Message, None]) -> EventStream:
    """Start the stream once the first event exists, so that earlier failures get an HTTP error status."""
    try:
        first = await anext(responses)
    except BaseException:
        await responses.aclose()
        raise
    return EventStream(_events(first, responses), media_type=MEDIA_TYPE, headers=_UNBUFFERED_HEADERS)


async def _events(first: Message, responses: AsyncGenerator[Message, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(responses):
        yield _event(first)
        try:
            async for response in responses:
                yield _event(response)
        except FailedError as error:
            yield _format_event("error", error.failure.body())


def _event(response: Any) -> bytes:
    kind = response.WhichOneof("event")
    return _format_event(kind, to_json_value(response.done) if kind == "done" else {kind: getattr(response, kind)})


def _format_event(kind: str, content: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dump(content))
