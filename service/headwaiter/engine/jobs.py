"""Jobs that an engine runs, and the errors they can end with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from headwaiter.engine.throughput import WaitEstimate

Result = TypeVar("Result")


class QueueFullError(Exception):
    """The request would wait too long; the client may retry after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class DeadlineError(TimeoutError):
    """The deadline of the request passed."""


class ClosedError(Exception):
    """The model is closed, or was closed before the result was ready."""


class UnhealthyError(ClosedError):
    """The engine produces no results any more and is being replaced; the client may retry after `retry_after` seconds.

    `reason` is for logs and notes, because it may quote the runtime.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("the model stopped answering and is being replaced; retry later")
        self.add_note(reason)
        self.retry_after = 1.0


@dataclass(slots=True, eq=False)
class JobGroup:
    """The jobs of one request, which share the engine fairly with the jobs of other requests."""

    size: int = 1  # jobs that are expected
    finish_tag: float = 0.0  # virtual time at which the last queued job is to finish; see `JobQueue`


_current_group: ContextVar[JobGroup | None] = ContextVar("current job group", default=None)


@contextmanager
def job_group(size: int) -> Iterator[JobGroup]:
    """Jobs that are created in this context belong to one group; outside of it, each job is a group of its own."""
    group = JobGroup(size)
    token = _current_group.set(group)
    try:
        yield group
    finally:
        _current_group.reset(token)


def expect_jobs(count: int) -> int:
    """Announce that one expected job of the current group is `count` jobs.

    Returns the size of the group, or 0 if there is none.
    """
    group = _current_group.get()
    if group is None:
        return 0
    group.size += count - 1
    return group.size


@dataclass(slots=True, eq=False)
class Job(Generic[Result]):
    """A unit of work with a future. Cancelling the future or passing the deadline frees its slots within one step."""

    future: Future[Result] = field(default_factory=Future, init=False)
    deadline: float | None = field(default=None, kw_only=True)  # in time.monotonic() seconds
    submitted: float = field(default_factory=time.monotonic, init=False)
    started: float | None = field(default=None, init=False)
    work: float = field(default=1.0, init=False)  # estimated, in the engine's own unit
    group: JobGroup = field(default_factory=lambda: _current_group.get() or JobGroup(), init=False)
    start_tag: float = field(default=0.0, init=False)  # virtual time, by which the queue is ordered
    wait_estimate: WaitEstimate | None = field(default=None, init=False)  # of the first job of a group
    is_short: bool = field(default=False, init=False)  # one of few jobs of its request
    is_long: bool = field(default=False, init=False)  # one of very many

    def is_expired(self, now: float) -> bool:
        """Whether the future is done or the deadline has passed; in the latter case the job fails here."""
        if self.future.done():
            return True
        if self.deadline is not None and now >= self.deadline:
            self.fail(DeadlineError("the deadline passed before the result was ready"))
            return True
        return False

    def start(self, now: float) -> None:
        self.started = now

    def succeed(self, result: Result) -> None:
        with suppress(InvalidStateError):  # cancelled concurrently
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)
