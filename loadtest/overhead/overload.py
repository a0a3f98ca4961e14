"""Goodput, latency and rejection latency at five times the capacity of a model, over gRPC and over HTTP.

The replica is pinned to its own core; clients, HAProxy and the rest of Ray share the others. Otherwise the clients'
work on rejections would compete with the replica, and the shared machine would be measured instead of the service.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import numpy as np

from loadtest.overhead.async_callers import Send, call_at_rate, call_for_seconds
from loadtest.overhead.request_senders import OPUS, http_translate_sender, translate_sender
from loadtest.overhead.throughput import TRANSLATOR, saturate
from loadtest.service_process import ServiceProcess, pin_to_cores, running_service

SECONDS = 20.0  # of each measurement
_OVERLOAD_FACTOR = 5
_WARM_UP_SHARE = 0.2  # of the seconds; ignored, as are answers after the end
_TOO_MANY_REQUESTS = 429
_NORMAL_CALLERS = 64  # one per slot, so that no request is queued


@dataclass(frozen=True, slots=True)
class Overload:
    """Rates are in requests per second."""

    model: str
    transport: str  # gRPC or HTTP
    normal: float  # answered with one client per slot: the peak, without a queue
    offered: float
    answered: float
    goodput: float  # answered relative to normal
    normal_p95_ms: float
    answered_p95_ms: float
    rejected_p95_ms: float
    other_failures: int


@dataclass(slots=True)
class CallOutcomes:
    """Outcomes of calls during `seconds`, as (end time, latency) in seconds."""

    seconds: float
    answered: list[tuple[float, float]] = field(default_factory=list)
    rejected: list[tuple[float, float]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def rate(self) -> float:
        """Answers per second."""
        return len(self._counted(self.answered)) / (self.seconds * (1 - _WARM_UP_SHARE))

    def answered_p95_ms(self) -> float:
        return _p95_ms(self._counted(self.answered))

    def rejected_p95_ms(self) -> float:
        return _p95_ms(self._counted(self.rejected))

    def _counted(self, outcomes: list[tuple[float, float]]) -> list[float]:
        return [latency for end, latency in outcomes if _WARM_UP_SHARE * self.seconds <= end < self.seconds]


Sender = Callable[[str, str], AbstractAsyncContextManager[Send]]
Drive = Callable[[Send], Awaitable[object]]


def measure(
    scratch: Path, _: int, report_progress: Callable[[str], None], *, seconds: float = SECONDS
) -> list[Overload]:
    model = {"path": str(OPUS.resolve()), "resources": {"cpus": 1}}
    with running_service(scratch, {TRANSLATOR: model}) as service, _pinned_cores(service):
        asyncio.run(saturate(service.grpc, TRANSLATOR, _NORMAL_CALLERS))
        transports: dict[str, tuple[Sender, str]] = {
            "gRPC": (translate_sender, service.grpc),
            "HTTP": (http_translate_sender, service.http),
        }
        rows = []
        for transport, (sender, address) in transports.items():
            report_progress(f"{TRANSLATOR} over {transport}: at capacity, then at five times the capacity")
            rows.append(asyncio.run(_measure_transport(transport, sender, address, seconds)))
    return rows


async def _measure_transport(transport: str, sender: Sender, address: str, seconds: float) -> Overload:
    async with sender(address, TRANSLATOR) as send:
        normal = await record_outcomes(send, lambda call: call_for_seconds(call, _NORMAL_CALLERS, seconds), seconds)
        offered = _OVERLOAD_FACTOR * normal.rate()
        overloaded = await record_outcomes(send, lambda call: call_at_rate(call, offered, seconds), seconds)
    return Overload(
        f"{TRANSLATOR} int8",
        transport,
        normal.rate(),
        offered,
        overloaded.rate(),
        overloaded.rate() / normal.rate(),
        normal.answered_p95_ms(),
        overloaded.answered_p95_ms(),
        overloaded.rejected_p95_ms(),
        len(normal.rejected) + len(normal.others) + len(overloaded.others),
    )


async def record_outcomes(send: Send, drive: Drive, seconds: float) -> CallOutcomes:
    """Drive calls for some seconds and sort them into answers, rejections and other failures."""
    outcomes, start = CallOutcomes(seconds), time.perf_counter()

    async def call(number: int) -> None:
        started = time.perf_counter()
        try:
            await send(number)
        except (grpc.aio.AioRpcError, aiohttp.ClientError, OSError) as error:
            if not _is_rejection(error):
                outcomes.others.append(str(error))
                return
            recorded = outcomes.rejected
        else:
            recorded = outcomes.answered
        now = time.perf_counter()
        recorded.append((now - start, now - started))

    await drive(call)
    return outcomes


def _is_rejection(error: Exception) -> bool:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return isinstance(error, aiohttp.ClientResponseError) and error.status == _TOO_MANY_REQUESTS


def _p95_ms(latencies: list[float]) -> float:
    return 1e3 * float(np.percentile(latencies, 95)) if latencies else 0.0


@contextmanager
def _pinned_cores(service: ServiceProcess) -> Iterator[None]:
    """Pin the replica to the first core and all other processes, including this one, to the rest."""
    own_cores = os.sched_getaffinity(0)
    replica_core, *other_cores = sorted(own_cores)
    if other_cores:
        for process in service.processes():
            pin_to_cores(process, {replica_core} if process in service.replicas(TRANSLATOR) else set(other_cores))
        pin_to_cores(os.getpid(), set(other_cores))
    try:
        yield
    finally:
        pin_to_cores(os.getpid(), own_cores)
