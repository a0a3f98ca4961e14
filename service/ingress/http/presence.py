"""A client that goes away takes its work along. Ray cancels by itself; other servers only tell whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from grpc import StatusCode
from starlette.requests import Request

from service.ingress.errors import FailedError, Failure

Answer = TypeVar("Answer")
GONE = "the client went away"
_SOON = 0.02  # seconds: what is answered by then is cheaper answered than watched


async def while_present(request: Request, work: Awaitable[Answer]) -> Answer:
    """What the work gives; the body has been read."""
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    watchers: list[asyncio.Task[None]] = []
    start = loop.call_later(_SOON, lambda: watchers.append(loop.create_task(_cancel_when_gone(request, this))))
    try:
        return await work
    except asyncio.CancelledError:
        if this is not None and any(watcher.done() for watcher in watchers) and this.uncancel() == 0:
            raise FailedError(Failure(StatusCode.CANCELLED, GONE)) from None
        raise
    finally:
        start.cancel()
        for watcher in watchers:
            watcher.cancel()


async def _cancel_when_gone(request: Request, task: asyncio.Task[object] | None) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    if task is not None:
        task.cancel(GONE)
