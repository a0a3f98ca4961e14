"""Open-loop load: Poisson arrivals that do not depend on earlier responses."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import gevent
from gevent.pool import Group

from loadtest.traffic.samples import STEP, Sample
from loadtest.traffic.transports import CallResult, CancelAfter

Rate = Callable[[float], float]
"""Arrivals per second as a function of the seconds since the start."""
_MAX_SLEEP_SECONDS = 0.25  # bounds the delay until a changed rate takes effect
_CANCEL_SECONDS = (0.001, 0.4)  # minimum and maximum of a log-uniform distribution
_MAX_CHUNKS_BEFORE_CANCEL = 6


class RequestLike(Protocol):
    @property
    def model(self) -> str: ...

    @property
    def method(self) -> str: ...


RequestT = TypeVar("RequestT", bound=RequestLike)
SentT = TypeVar("SentT", contravariant=True)
SourceT = TypeVar("SourceT", covariant=True)


class RequestSource(Protocol[SourceT]):
    def request(self, transport: str) -> SourceT: ...


class Transport(Protocol[SentT]):
    name: str

    def send(self, request: SentT, cancel_after: CancelAfter | None = None) -> CallResult: ...


class OpenLoopDriver(Generic[RequestT]):
    """Sends requests from a workload over the transports and calls `on_sample` when each request ends."""

    def __init__(
        self,
        workload: RequestSource[RequestT],
        transports: Sequence[Transport[RequestT]],
        on_sample: Callable[[Sample, str], None],
        *,
        seed: int = 0,
        cancel_share: float = 0,
    ) -> None:
        """`cancel_share` is the fraction of requests that the client cancels before they end."""
        self.cancel_share = cancel_share
        self._workload, self._transports, self._on_sample = workload, transports, on_sample
        self._random = random.Random(seed)
        self._in_flight = Group()
        self._started_at = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self._started_at

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def begin(self) -> None:
        self._started_at = time.perf_counter()

    def send_arrivals(self, rate: Rate, until: float) -> None:
        """Send Poisson arrivals at a rate that may change until `until`; each is sent when due."""
        due = self.now
        while due < until:
            expected = rate(due)
            gap = self._random.expovariate(expected) if expected > 0 else _MAX_SLEEP_SECONDS
            if gap >= _MAX_SLEEP_SECONDS:  # exponential gaps are memoryless, so redrawing keeps the distribution
                due += _MAX_SLEEP_SECONDS
                self._sleep_until(due)
                continue
            due += gap
            self._sleep_until(due)
            if due < until:
                self._in_flight.spawn(self.send_one, due)

    def send_one(self, due: float | None = None) -> None:
        """Send one request and wait for its end; latency is counted from `due` (default: now)."""
        sent = self.now
        transport = self._random.choice(self._transports)
        request = self._workload.request(transport.name)
        result = transport.send(request, self._draw_cancellation())
        self._report(request, transport.name, sent if due is None else due, sent, result)

    def wait(self, seconds: float) -> bool:
        """Wait for all requests in flight; return whether they have all ended."""
        return bool(self._in_flight.join(timeout=seconds)) or not len(self._in_flight)

    def _draw_cancellation(self) -> CancelAfter | None:
        if self._random.random() >= self.cancel_share:
            return None
        low, high = map(math.log, _CANCEL_SECONDS)
        return CancelAfter(math.exp(self._random.uniform(low, high)), self._random.randrange(_MAX_CHUNKS_BEFORE_CANCEL))

    def _report(self, request: RequestT, transport: str, due: float, sent: float, result: CallResult) -> None:
        send_delay, code = sent - due, result.code
        for seconds in result.steps:
            self._on_sample(Sample(due, send_delay, seconds, None, transport, request.model, STEP, "OK"), "")
        latency = self.now - due
        self._on_sample(
            Sample(
                due, send_delay, latency, result.first_chunk_seconds, transport, request.model, request.method, code
            ),
            result.message,
        )

    def _sleep_until(self, due: float) -> None:
        if (remaining := due - self.now) > 0:
            gevent.sleep(remaining)
