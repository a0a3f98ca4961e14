"""The drain of a model server: accepted requests finish, and streams that only wait for their client are ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TypeVar

from headwaiter.engine.jobs import ClosedError

Request = TypeVar("Request")
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 2.0
STOPPING = "the replica is stopping; send the request again and another one answers it"


class Drain:
    """Whether the server drains. Set from any thread or event loop; waiting streams notice within half a second."""

    def __init__(self) -> None:
        self._began_at: float | None = None

    @property
    def is_draining(self) -> bool:
        return self._began_at is not None

    def begin(self) -> None:
        if self._began_at is None:
            self._began_at = time.monotonic()

    async def limit(self, requests: AsyncIterator[Request]) -> AsyncIterator[Request]:
        """The requests of a stream. Raises ClosedError if none is there after a short grace period of the drain."""
        iterator = aiter(requests)
        while True:
            reading = asyncio.ensure_future(anext(iterator))
            try:
                await self._wait(reading)
                request = reading.result()
            except StopAsyncIteration:
                return
            finally:
                reading.cancel()
            yield request

    async def _wait(self, reading: asyncio.Future[Request]) -> None:
        while not (await asyncio.wait([reading], timeout=_POLL_SECONDS))[0]:
            if self._began_at is not None and time.monotonic() > self._began_at + _GRACE_SECONDS:
                raise ClosedError(STOPPING)
