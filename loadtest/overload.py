"""Five times as many requests as can be answered: what is answered, how fast, and how fast the rest is refused."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from loadtest.callers import Calls, call_at
from loadtest.senders import OPUS, translating
from loadtest.served import serving
from loadtest.throughput import TRANSLATOR, saturate

_TIMES, _SECONDS = 5, 20.0
_USUAL_CALLERS = 64  # as many as there are rows: nobody waits


@dataclass(frozen=True, slots=True)
class Overload:
    """Five times as many requests as can be answered."""

    model: str
    offered: float  # a second
    answered: float
    goodput: float  # answered beside what is answered at saturation
    normal_p95_ms: float  # with as many callers as find room
    answered_p95_ms: float
    refused_p95_ms: float
    other_failures: int


def measure(scratch: Path, _: int, tell: Callable[[str], None]) -> list[Overload]:
    model = {"path": str(OPUS.resolve()), "resources": {"cpus": os.cpu_count()}}
    with serving(scratch, {TRANSLATOR: model}) as service:
        tell(f"{TRANSLATOR}: as much as it answers, then five times as much")
        asyncio.run(saturate(service.grpc, TRANSLATOR, _USUAL_CALLERS))
        normal = asyncio.run(saturate(service.grpc, TRANSLATOR, _USUAL_CALLERS))
        return [asyncio.run(_flood(service.grpc, normal))]


async def _flood(address: str, normal: Calls) -> Overload:
    answered: list[float] = []
    refused: list[float] = []
    others: list[str] = []
    async with translating(address, TRANSLATOR) as translate:

        async def send(number: int) -> None:
            begun = time.perf_counter()
            try:
                await translate(number)
                answered.append(time.perf_counter() - begun)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    refused.append(time.perf_counter() - begun)
                else:
                    others.append(error.code().name)

        begun = time.perf_counter()
        await call_at(send, _TIMES * normal.rate, _SECONDS)
        taken = time.perf_counter() - begun
    rate = len(answered) / taken
    return Overload(
        f"{TRANSLATOR} int8",
        _TIMES * normal.rate,
        rate,
        rate / normal.rate,
        1e3 * normal.quantile(0.95),
        1e3 * Calls(sorted(answered), taken, 0).quantile(0.95),
        1e3 * Calls(sorted(refused), taken, 0).quantile(0.95) if refused else 0.0,
        len(others),
    )
