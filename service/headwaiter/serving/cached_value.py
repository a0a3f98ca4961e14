"""A value that is slow to read and may be a little old."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from headwaiter.engine.jobs import ClosedError

Value = TypeVar("Value")
_LOG = logging.getLogger(__name__)


class CachedValue(Generic[Value]):
    """Reads a value in a thread, at most once at a time and once in `max_age_seconds`.

    If reading fails or takes longer than `timeout_seconds`, the last value is returned; without one, `get` raises
    ClosedError.
    """

    def __init__(
        self, read: Callable[[], Value], *, max_age_seconds: float = 1.0, timeout_seconds: float = 5.0
    ) -> None:
        self._read, self._max_age_seconds, self._timeout_seconds = read, max_age_seconds, timeout_seconds
        self._value: Value | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def get(self) -> Value:
        if time.monotonic() - self._read_at > self._max_age_seconds:
            if self._reading is None:
                self._reading = asyncio.create_task(self._refresh())
            await asyncio.wait([self._reading], timeout=self._timeout_seconds)
        if self._value is None:
            raise ClosedError("the state of the models is not known yet; retry later")
        return self._value

    async def _refresh(self) -> None:
        try:
            self._value = await asyncio.to_thread(self._read)
            self._read_at = time.monotonic()
        except Exception:
            _LOG.exception("the state of the models could not be read")
        finally:
            self._reading = None
