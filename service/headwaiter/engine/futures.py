"""Results that are awaited, and results that arrive as a stream. Post-processing runs in the consumer, not in the
engine's thread."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Pending(Generic[Result]):
    """A result combined from several futures. `result()` blocks a thread, `await` suspends a coroutine.

    When one future fails or the consumer is cancelled, the other futures are cancelled.
    """

    def __init__(self, futures: Sequence[Future[Any]], combine: Callable[[list[Any]], Result]) -> None:
        self._futures, self._combine = futures, combine

    def result(self, timeout: float | None = None) -> Result:
        end = None if timeout is None else time.monotonic() + timeout
        try:
            results = [
                future.result(None if end is None else max(0.0, end - time.monotonic())) for future in self._futures
            ]
        except BaseException:
            self.cancel()
            raise
        return self._combine(results)

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait().__await__()

    def cancel(self) -> None:
        for future in self._futures:
            future.cancel()

    async def _wait(self) -> Result:
        try:
            results = await asyncio.gather(*(asyncio.wrap_future(future) for future in self._futures))
        except BaseException:
            self.cancel()
            raise
        return self._combine(list(results))


_END = object()
_ITEMS_PER_TURN = 64  # that a coroutine takes before others run


class Stream(Generic[Item]):
    """Items passed in order from one thread to another thread or a coroutine, until the end or an error."""

    def __init__(self) -> None:
        self._items: SimpleQueue[object] = SimpleQueue()
        self._wake: Callable[[], object] | None = None

    def put(self, item: Item) -> None:
        self._add(item)

    def end(self, error: BaseException | None = None) -> None:
        self._add(_END if error is None else error)

    def __iter__(self) -> Iterator[Item]:
        while (item := self._items.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item  # type: ignore[misc]

    async def __aiter__(self) -> AsyncIterator[Item]:
        loop, has_items = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(has_items.set)
        has_items.set()
        while True:
            await has_items.wait()
            has_items.clear()
            for count in itertools.count(1):
                if self._items.empty():
                    break
                if count % _ITEMS_PER_TURN == 0:
                    await asyncio.sleep(0)  # a long backlog must not hold the event loop
                item = self._items.get()
                if item is _END:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item  # type: ignore[misc]

    def _add(self, item: object) -> None:
        self._items.put(item)
        if (wake := self._wake) is not None:
            with suppress(RuntimeError):  # the event loop is closed, so there is no consumer
                wake()
