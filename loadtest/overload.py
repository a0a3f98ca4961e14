"""Five times as many requests as can be answered: what is answered, how fast, and how fast the rest is refused.

The replica has a core to itself; the callers, HAProxy and the rest of Ray share the others. Else the callers' own work
on refusals would be taken from the answers, and the measurement be of the machine that is shared, not of the service.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from loadtest.callers import Send, call_at, call_for
from loadtest.senders import OPUS, translating
from loadtest.served import Service, pin, serving
from loadtest.throughput import TRANSLATOR, saturate

_TIMES, _SECONDS = 5, 20.0
_FILLING = 4.0  # seconds at the start that do not count, and neither does what is answered after the end
_USUAL_CALLERS = 64  # as many as there are rows: nobody waits


@dataclass(frozen=True, slots=True)
class Overload:
    """Five times as many requests as can be answered."""

    model: str
    normal: float  # answered a second, with as many callers as find room
    offered: float  # a second
    answered: float
    goodput: float  # answered beside normal
    normal_p95_ms: float
    answered_p95_ms: float
    refused_p95_ms: float
    other_failures: int


@dataclass(slots=True)
class Ends:
    """How calls ended: when, after how many seconds."""

    answered: list[tuple[float, float]] = field(default_factory=list)
    refused: list[tuple[float, float]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def rate(self) -> float:
        return len(_counted(self.answered)) / (_SECONDS - _FILLING)


def measure(scratch: Path, _: int, tell: Callable[[str], None]) -> list[Overload]:
    model = {"path": str(OPUS.resolve()), "resources": {"cpus": 1}}
    with serving(scratch, {TRANSLATOR: model}) as service, _apart(service):
        tell(f"{TRANSLATOR}: as much as it answers, then five times as much")
        asyncio.run(saturate(service.grpc, TRANSLATOR, _USUAL_CALLERS))
        normal = asyncio.run(_observed(service.grpc, lambda send: call_for(send, _USUAL_CALLERS, _SECONDS)))
        offered = _TIMES * normal.rate()
        flood = asyncio.run(_observed(service.grpc, lambda send: call_at(send, offered, _SECONDS)))
    return [
        Overload(
            f"{TRANSLATOR} int8",
            normal.rate(),
            offered,
            flood.rate(),
            flood.rate() / normal.rate(),
            _p95_ms(normal.answered),
            _p95_ms(flood.answered),
            _p95_ms(flood.refused),
            len(normal.refused) + len(normal.others) + len(flood.others),
        )
    ]


async def _observed(address: str, drive: Callable[[Send], Awaitable[object]]) -> Ends:
    ends, start = Ends(), time.perf_counter()
    async with translating(address, TRANSLATOR) as translate:

        async def send(number: int) -> None:
            begun = time.perf_counter()
            try:
                await translate(number)
                ends.answered.append((time.perf_counter() - start, time.perf_counter() - begun))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    ends.refused.append((time.perf_counter() - start, time.perf_counter() - begun))
                else:
                    ends.others.append(error.code().name)

        await drive(send)
    return ends


def _counted(ends: list[tuple[float, float]]) -> list[float]:
    return [taken for at, taken in ends if _FILLING <= at < _SECONDS]


def _p95_ms(ends: list[tuple[float, float]]) -> float:
    return 1e3 * float(np.percentile(_counted(ends), 95)) if _counted(ends) else 0.0


@contextmanager
def _apart(service: Service) -> Iterator[None]:
    """The replica on the first core, all others on the rest; this process too, for as long."""
    mine = os.sched_getaffinity(0)
    first, *rest = sorted(mine)
    if rest:
        for process in service.processes():
            pin(process, {first} if process in service.replicas(TRANSLATOR) else set(rest))
        pin(os.getpid(), set(rest))
    try:
        yield
    finally:
        pin(os.getpid(), mine)
