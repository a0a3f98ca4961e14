"""Cancels the work for a disconnected client. Ray does so itself; other ASGI servers only report the disconnect through
`receive`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from grpc import StatusCode
from starlette.requests import Request

from headwaiter.api.errors import FailedError, Failure

Result = TypeVar("Result")
CLIENT_DISCONNECTED = "the client disconnected"
_WATCH_DELAY_SECONDS = 0.02  # shorter requests are not worth a watcher task


async def run_until_disconnect(request: Request, work: Awaitable[Result]) -> Result:
    """Await `work` and return its result; if the client disconnects, cancel it and raise FailedError.

    The request body must have been read completely.
    """
    loop, current_task = asyncio.get_running_loop(), asyncio.current_task()
    watchers: list[asyncio.Task[None]] = []
    start = loop.call_later(
        _WATCH_DELAY_SECONDS, lambda: watchers.append(loop.create_task(_cancel_on_disconnect(request, current_task)))
    )
    try:
        return await work
    except asyncio.CancelledError:
        is_disconnected = any(watcher.done() for watcher in watchers)
        if current_task is not None and is_disconnected and current_task.uncancel() == 0:
            raise FailedError(Failure(StatusCode.CANCELLED, CLIENT_DISCONNECTED)) from None
        raise
    finally:
        start.cancel()
        for watcher in watchers:
            watcher.cancel()


async def _cancel_on_disconnect(request: Request, task: asyncio.Task[object] | None) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if task is not None:
        task.cancel(CLIENT_DISCONNECTED)
