"""Callers that behave well, in a separate process: valid requests with the client library, during every scenario."""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from headwaiter.client import HeadwaiterError, RetryPolicy
from headwaiter.client.aio import AsyncClient
from headwaiter.client.call import Call, StreamCall
from headwaiter.client.operations import translate
from loadtest.abuse.statistics import percentile
from loadtest.traffic.request_generators import build_workload

BASELINE, PAUSED = "baseline", "paused"
_TIMEOUT_SECONDS = 60.0
_PAUSE_SECONDS = 0.02
_CALLERS = 2
_STREAM_SHARE = 0.2
_STOP = "stop"


@dataclass
class PhaseLog:
    """Requests that started in one phase of a run."""

    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def p95(self) -> float:
        return percentile(self.seconds, 0.95)

    @property
    def median(self) -> float:
        return percentile(self.seconds, 0.5)


Logs = dict[str, PhaseLog]


@dataclass
class GoodCallers:
    """The process of the callers, seen from the parent."""

    _connection: Connection
    _process: Any
    logs: Logs = field(default_factory=dict)

    def begin(self, phase: str) -> None:
        """Requests that start from now on belong to `phase`; none start in the phase PAUSED."""
        self._connection.send(phase)

    def measure(self, phase: str, seconds: float) -> None:
        self.begin(phase)
        time.sleep(seconds)

    def read(self) -> Logs:
        """Return the logs so far; requests in flight are not in them."""
        self._connection.send(None)
        if not self._connection.poll(2 * _TIMEOUT_SECONDS):
            raise TimeoutError("the process of the good callers does not answer")
        self.logs = self._connection.recv()
        return self.logs

    def ratio(self, phase: str, baseline: str = BASELINE) -> float:
        """The p95 of a phase divided by that of the baseline; NaN if one of them has no requests."""
        logs = self.logs
        return logs[phase].p95 / logs[baseline].p95 if phase in logs and baseline in logs else math.nan

    def stop(self) -> None:
        """Let the requests in flight finish, then end the process; `logs` is complete afterwards."""
        if self._process.is_alive():
            self._connection.send(_STOP)
            if self._connection.poll(2 * _TIMEOUT_SECONDS):
                self.logs = self._connection.recv()
            self._process.join(_TIMEOUT_SECONDS)
        if self._process.is_alive():
            self._process.kill()


@contextmanager
def good_callers(
    address: str,
    models: Sequence[str] = (),
    *,
    text: str | None = None,
    attempt_seconds: float = math.inf,
    seed: int = 0,
) -> Iterator[GoodCallers]:
    """Start callers of `models` (default: all) that begin paused. With `text`, they only translate this text.

    They abandon and repeat attempts that take longer than `attempt_seconds`.
    """
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(
        target=_main, args=(child, _Options(address, list(models), text, attempt_seconds, seed)), daemon=True
    )
    process.start()
    callers = GoodCallers(parent, process)
    try:
        callers.read()  # wait until it has started
        yield callers
    finally:
        callers.stop()


@dataclass(frozen=True, slots=True)
class _Options:
    address: str
    models: list[str]
    text: str | None
    attempt_seconds: float
    seed: int


def _main(connection: Connection, options: _Options) -> None:
    asyncio.run(_Loop(connection, options).run())


class _Loop:
    def __init__(self, connection: Connection, options: _Options) -> None:
        self._connection, self._options = connection, options
        self._workload = build_workload(options.address, dict.fromkeys(options.models, 1.0), seed=options.seed)
        self._logs: defaultdict[str, PhaseLog] = defaultdict(PhaseLog)
        self._phase, self._is_stopped = PAUSED, asyncio.Event()

    async def run(self) -> None:
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._receive)
        retries = RetryPolicy(attempt_timeout=self._options.attempt_seconds)
        async with AsyncClient(self._options.address, timeout=_TIMEOUT_SECONDS, retries=retries) as client:
            await asyncio.gather(*(self._call_repeatedly(client) for _ in range(_CALLERS)))
        self._connection.send(dict(self._logs))

    def _receive(self) -> None:
        match self._connection.recv():
            case None:
                self._connection.send(dict(self._logs))
            case str(phase) if phase == _STOP:
                self._is_stopped.set()
            case str(phase):
                self._phase = phase

    async def _call_repeatedly(self, client: AsyncClient) -> None:
        while not self._is_stopped.is_set():
            if self._phase != PAUSED:
                await self._call(client, self._logs[self._phase])
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _call(self, client: AsyncClient, log: PhaseLog) -> None:
        call, started = self._next_call(), time.perf_counter()
        try:
            if isinstance(call, StreamCall):
                async with client.stream(call) as stream:
                    async for _ in stream:
                        pass
            else:
                await client.execute(call)
        except HeadwaiterError as error:
            log.failed.append(f"{call.method} of {call.model}: {error!r}")
        else:
            log.seconds.append(time.perf_counter() - started)

    def _next_call(self) -> Any:
        if self._options.text is not None:
            return translate(self._options.models[0], self._options.text)
        generator = self._workload.draw()
        call: Call[Any] | StreamCall = generator.request(transport="http", streamed=_STREAM_SHARE).call  # type: ignore[assignment]
        return call
