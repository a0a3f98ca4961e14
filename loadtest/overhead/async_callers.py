"""Asynchronous clients in this process: closed loop with a fixed concurrency, or open loop at a fixed rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

Send = Callable[[int], Awaitable[object]]
"""Sends the request with the given number."""


@dataclass(frozen=True, slots=True)
class CallStats:
    latencies: list[float]  # seconds, ascending
    seconds: float
    client_cores: float  # CPU time of the clients per second

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return self.latencies[min(int(share * len(self.latencies)), len(self.latencies) - 1)]


async def call_for_seconds(send: Send, callers: int, seconds: float) -> CallStats:
    end = time.perf_counter() + seconds
    return await _call(send, callers, _until(end))


async def call_at_rate(send: Send, rate: float, seconds: float) -> list[asyncio.Task[object]]:
    """Send `rate` requests per second regardless of pending ones; return when all have ended."""
    tasks: list[asyncio.Task[object]] = []
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        due = int(rate * now) + 1
        tasks += [asyncio.ensure_future(_as_task(send, number)) for number in range(len(tasks), due)]
        await asyncio.sleep(max(0.0, due / rate - (time.perf_counter() - started)))
    await asyncio.wait(tasks)
    return tasks


async def _as_task(send: Send, number: int) -> object:
    return await send(number)


async def call_n_times(send: Send, callers: int, count: int) -> CallStats:
    return await _call(send, callers, iter(range(count)))


async def _call(send: Send, callers: int, numbers: Iterator[int]) -> CallStats:
    latencies: list[float] = []

    async def caller() -> None:
        for number in numbers:  # the iterator is shared by all callers
            started = time.perf_counter()
            await send(number)
            latencies.append(time.perf_counter() - started)

    cpu, started = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    seconds = time.perf_counter() - started
    return CallStats(sorted(latencies), seconds, (time.process_time() - cpu) / seconds)


def _until(end: float) -> Iterator[int]:
    number = 0
    while time.perf_counter() < end:
        yield number
        number += 1
