"""Callers in this process: so many at once, each sending its next request when the last is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

Send = Callable[[int], Awaitable[object]]
"""Sends request number so and so."""


@dataclass(frozen=True, slots=True)
class Calls:
    latencies: list[float]  # seconds, ascending
    seconds: float
    own_cores: float  # of CPU that the callers themselves used

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def quantile(self, share: float) -> float:
        return self.latencies[min(int(share * len(self.latencies)), len(self.latencies) - 1)]


async def call_for(send: Send, callers: int, seconds: float) -> Calls:
    end = time.perf_counter() + seconds
    return await _call(send, callers, _until(end))


async def call_at(send: Send, rate: float, seconds: float) -> list[asyncio.Task[object]]:
    """Open loop: so many a second, whether or not the ones before are answered; returns when all have ended."""
    tasks: list[asyncio.Task[object]] = []
    begun = time.perf_counter()
    while (now := time.perf_counter() - begun) < seconds:
        due = int(rate * now) + 1
        tasks += [asyncio.ensure_future(_as_task(send, number)) for number in range(len(tasks), due)]
        await asyncio.sleep(max(0.0, due / rate - (time.perf_counter() - begun)))
    await asyncio.wait(tasks)
    return tasks


async def _as_task(send: Send, number: int) -> object:
    return await send(number)


async def call_each(send: Send, callers: int, count: int) -> Calls:
    return await _call(send, callers, iter(range(count)))


async def _call(send: Send, callers: int, numbers: Iterator[int]) -> Calls:
    latencies: list[float] = []

    async def caller() -> None:
        for number in numbers:  # all take from the same
            begun = time.perf_counter()
            await send(number)
            latencies.append(time.perf_counter() - begun)

    cpu, begun = time.process_time(), time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    taken = time.perf_counter() - begun
    return Calls(sorted(latencies), taken, (time.process_time() - cpu) / taken)


def _until(end: float) -> Iterator[int]:
    number = 0
    while time.perf_counter() < end:
        yield number
        number += 1
