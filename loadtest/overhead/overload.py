"""Goodput, latency and rejection latency at five times the capacity of a model.

The replica is pinned to its own core; clients, HAProxy and the rest of Ray share the others. Otherwise the clients'
work on rejections would compete with the replica, and the shared machine would be measured instead of the service.
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

from loadtest.overhead.async_callers import Send, call_at_rate, call_for_seconds
from loadtest.overhead.request_senders import OPUS, translate_sender
from loadtest.overhead.throughput import TRANSLATOR, saturate
from loadtest.service_process import ServiceProcess, pin_to_cores, running_service

_OVERLOAD_FACTOR, _SECONDS = 5, 20.0
_WARM_UP_SECONDS = 4.0  # ignored, as are answers after the end
_NORMAL_CALLERS = 64  # one per slot, so that no request is queued


@dataclass(frozen=True, slots=True)
class Overload:
    """Rates are in requests per second."""

    model: str
    normal: float  # answered with one client per slot
    offered: float
    answered: float
    goodput: float  # answered relative to normal
    normal_p95_ms: float
    answered_p95_ms: float
    rejected_p95_ms: float
    other_failures: int


@dataclass(slots=True)
class CallOutcomes:
    """Outcomes as (end time, latency) in seconds."""

    answered: list[tuple[float, float]] = field(default_factory=list)
    rejected: list[tuple[float, float]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def rate(self) -> float:
        return len(_counted(self.answered)) / (_SECONDS - _WARM_UP_SECONDS)


def measure(scratch: Path, _: int, report_progress: Callable[[str], None]) -> list[Overload]:
    model = {"path": str(OPUS.resolve()), "resources": {"cpus": 1}}
    with running_service(scratch, {TRANSLATOR: model}) as service, _pinned_cores(service):
        report_progress(f"{TRANSLATOR}: at capacity, then at five times the capacity")
        asyncio.run(saturate(service.grpc, TRANSLATOR, _NORMAL_CALLERS))
        normal = asyncio.run(
            _record_outcomes(service.grpc, lambda send: call_for_seconds(send, _NORMAL_CALLERS, _SECONDS))
        )
        offered = _OVERLOAD_FACTOR * normal.rate()
        overloaded = asyncio.run(_record_outcomes(service.grpc, lambda send: call_at_rate(send, offered, _SECONDS)))
    return [
        Overload(
            f"{TRANSLATOR} int8",
            normal.rate(),
            offered,
            overloaded.rate(),
            overloaded.rate() / normal.rate(),
            _p95_ms(normal.answered),
            _p95_ms(overloaded.answered),
            _p95_ms(overloaded.rejected),
            len(normal.rejected) + len(normal.others) + len(overloaded.others),
        )
    ]


async def _record_outcomes(address: str, drive: Callable[[Send], Awaitable[object]]) -> CallOutcomes:
    outcomes, start = CallOutcomes(), time.perf_counter()
    async with translate_sender(address, TRANSLATOR) as translate:

        async def send(number: int) -> None:
            started = time.perf_counter()
            try:
                await translate(number)
                outcomes.answered.append((time.perf_counter() - start, time.perf_counter() - started))
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    outcomes.rejected.append((time.perf_counter() - start, time.perf_counter() - started))
                else:
                    outcomes.others.append(error.code().name)

        await drive(send)
    return outcomes


def _counted(outcomes: list[tuple[float, float]]) -> list[float]:
    return [latency for end, latency in outcomes if _WARM_UP_SECONDS <= end < _SECONDS]


def _p95_ms(outcomes: list[tuple[float, float]]) -> float:
    return 1e3 * float(np.percentile(_counted(outcomes), 95)) if _counted(outcomes) else 0.0


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
