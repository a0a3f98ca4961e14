"""Answers that are waited for, and answers that come piece by piece. What is left to do with them is done by whoever
waits, not by the engine's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

Part = TypeVar("Part")
Whole = TypeVar("Whole")


class Pending(Generic[Whole]):
    """An answer put together from parts. `result()` waits in a thread, `await` in a coroutine. When one part fails, or
    nobody waits any longer, the others are cancelled."""

    def __init__(self, parts: Sequence[Future[Any]], finish: Callable[[list[Any]], Whole]) -> None:
        self._parts, self._finish = parts, finish

    def result(self, timeout: float | None = None) -> Whole:
        end = None if timeout is None else time.monotonic() + timeout
        try:
            answers = [part.result(None if end is None else max(0.0, end - time.monotonic())) for part in self._parts]
        except BaseException:
            self.cancel()
            raise
        return self._finish(answers)

    def __await__(self) -> Generator[Any, None, Whole]:
        return self._wait().__await__()

    def cancel(self) -> None:
        for part in self._parts:
            part.cancel()

    async def _wait(self) -> Whole:
        try:
            answers = await asyncio.gather(*(asyncio.wrap_future(part) for part in self._parts))
        except BaseException:
            self.cancel()
            raise
        return self._finish(list(answers))


_END = object()


class Stream(Generic[Part]):
    """Pieces put in by one thread and taken out by another, or by a coroutine, in order, until the end or an error."""

    def __init__(self) -> None:
        self._items: SimpleQueue[object] = SimpleQueue()
        self._wake: Callable[[], object] | None = None

    def put(self, item: Part) -> None:
        self._add(item)

    def end(self, error: BaseException | None = None) -> None:
        self._add(_END if error is None else error)

    def __iter__(self) -> Iterator[Part]:
        while (item := self._items.get()) is not _END:
            if isinstance(item, BaseException):
                raise item
            yield item  # type: ignore[misc]

    async def __aiter__(self) -> AsyncIterator[Part]:
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: loop.call_soon_threadsafe(came.set)
        came.set()
        while True:
            await came.wait()
            came.clear()
            while not self._items.empty():
                item = self._items.get()
                if item is _END:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item  # type: ignore[misc]

    def _add(self, item: object) -> None:
        self._items.put(item)
        if (wake := self._wake) is not None:
            with suppress(RuntimeError):  # the loop is gone, and its listener with it
                wake()
