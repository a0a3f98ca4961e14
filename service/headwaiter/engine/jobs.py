"""Jobs that an engine runs, and the errors they can end with."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
class Job(Generic[Result]):
    """A unit of work with a future. Cancelling the future or passing the deadline frees its slots within one step."""

    future: Future[Result] = field(default_factory=Future, init=False)
    deadline: float | None = field(default=None, kw_only=True)  # in time.monotonic() seconds
    submitted: float = field(default_factory=time.monotonic, init=False)
    started: float | None = field(default=None, init=False)
    work: float = field(default=1.0, init=False)  # estimated, in the engine's own unit

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
