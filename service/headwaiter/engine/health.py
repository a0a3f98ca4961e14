"""Whether an engine still produces results. Its workers write it; any thread may read it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from headwaiter.engine.jobs import Job

Cause = Literal["failing", "hung", "crashed"]
"""Every step fails; a step does not end; a worker's thread ended with an exception."""
MAX_FAILED_STEPS = 3
"""Consecutive failed steps of a worker after which it checks itself."""
DEFAULT_RUN_TIMEOUT_S = 120.0
"""A run has at most about 1,024 padded tokens, or one input: 2 TFLOP for 1e9 weights, 100 s at 20 GFLOP/s."""


class EngineHealth:
    """Health of all workers of one engine. Once an engine is unhealthy, it stays so: it must be replaced."""

    def __init__(self) -> None:
        self.cause: Cause | None = None
        self.reason = ""
        """Why the engine is unhealthy, as a clause."""
        self.known_good: Job[Any] | None = None
        """The first job that finished, which is the one of the warm-up; its inputs are kept for the self-check."""
        self.run_timeout_s = DEFAULT_RUN_TIMEOUT_S
        """A worker whose graph run takes longer is hung."""
        self._lock = threading.Lock()

    @property
    def is_healthy(self) -> bool:
        return self.cause is None

    def keep_known_good(self, job: Job[Any]) -> None:
        if self.known_good is None:
            self.known_good = replace(job, deadline=None)

    def mark_unhealthy(self, cause: Cause, reason: str) -> None:
        """The only way to become unhealthy; the first reason is kept."""
        with self._lock:
            if self.cause is None:
                self.reason = reason
                self.cause = cause


class StepFailures:
    """Consecutive failed steps of one worker.

    A step fails if it finished nothing and failed at least one job. That may be the fault of the inputs, so after
    `MAX_FAILED_STEPS` the worker runs an input that is known to be good: only if that fails too, the engine is sick.
    """

    def __init__(self, health: EngineHealth, self_check: Callable[[], Exception | None]) -> None:
        """`self_check` runs the known good input and returns what it failed with."""
        self._health, self._self_check = health, self_check
        self._count = 0

    def record(self, *, failed: bool, made_progress: bool) -> None:
        """Record a step. An error after which no step can succeed would be marked here without counting."""
        if made_progress:
            self._count = 0
        elif failed:
            self._count += 1
        if self._count < MAX_FAILED_STEPS:
            return
        self._count = 0
        error = self._self_check()
        if error is not None:
            reason = f"{MAX_FAILED_STEPS} steps in a row failed, and so did the warm-up input ({one_line(error)})"
            self._health.mark_unhealthy("failing", reason)


def one_line(error: BaseException, max_chars: int = 300) -> str:
    """The type and the beginning of the message of an exception."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:max_chars]}" if text else type(error).__name__
