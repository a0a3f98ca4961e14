"""Admission control: one decision per request, made before the request is read, by the wait it would have."""

from __future__ import annotations

import math
import threading
from typing import Any

from headwaiter.engine.jobs import QueueFullError, UnhealthyError
from headwaiter.engine.worker import Engine

MAX_QUEUED_JOBS = 4096
_MAX_QUEUED_WITHOUT_ESTIMATE = 1024  # jobs, while there is no throughput estimate
_MAX_RETRY_SECONDS = 30.0
_EWMA_ALPHA = 0.1


class PreprocessingBacklog:
    """Requests that are being preprocessed, and how long one takes. Thread-safe."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._active = 0
        self._mean_seconds = 0.0  # exponentially weighted
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            self._active += 1

    def end(self, seconds: float | None) -> None:
        """`seconds` is the duration, or None if the preprocessing was cancelled before it started."""
        with self._lock:
            self._active -= 1
            if seconds is not None:
                self._mean_seconds += _EWMA_ALPHA * (seconds - self._mean_seconds)

    def estimated_wait(self) -> float:
        return self._active * self._mean_seconds / self._threads


class AdmissionController:
    """Accepts or rejects requests for one engine.

    A request is rejected if the estimated wait of its first job exceeds `max_wait_seconds` or the queue is at its
    capacity. The jobs of an accepted request are queued without another check. The queue is fair, so jobs of requests
    with many jobs delay the requests that follow only by their share.
    """

    def __init__(
        self,
        engine: Engine[Any],
        *,
        name: str,
        max_wait_seconds: float = math.inf,
        preprocessing: PreprocessingBacklog | None = None,
    ) -> None:
        self._engine, self._name, self._max_wait_seconds = engine, name, max_wait_seconds
        self._preprocessing = preprocessing

    def admit(self) -> None:
        """Raise QueueFullError if a request that is submitted now would wait too long, or UnhealthyError."""
        if not self._engine.health.is_healthy:
            raise UnhealthyError(self._engine.health.reason)
        queued, wait = len(self._engine.queue.jobs), self._engine.queue.estimated_wait()
        if queued >= (_MAX_QUEUED_WITHOUT_ESTIMATE if wait is None else MAX_QUEUED_JOBS):
            raise QueueFullError(f"{self._name} is overloaded: {queued:,} jobs are queued; retry later")
        total_wait = wait.seconds if wait is not None else 0.0
        if self._preprocessing is not None:
            total_wait += self._preprocessing.estimated_wait()
        if total_wait > self._max_wait_seconds:
            raise QueueFullError(
                f"{self._name} is overloaded: the estimated wait is {total_wait:,.1f} s; "
                f"the limit is {self._max_wait_seconds:,.1f} s",
                retry_after=min(total_wait - self._max_wait_seconds, _MAX_RETRY_SECONDS) + 0.1,
            )
