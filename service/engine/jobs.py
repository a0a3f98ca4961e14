"""What an engine is asked to do, and how whoever asked hears of it."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class QueueFullError(Exception):
    """More is waiting than the engine was told to hold; later there may be room."""

    def __init__(self, sentence: str, *, retry_after: float = 1.0) -> None:
        super().__init__(sentence)
        self.retry_after = retry_after  # seconds


class DeadlineError(TimeoutError):
    """The time that the caller gave is over."""


class ClosedError(Exception):
    """The model is closed, or was closed before the answer came."""


@dataclass(slots=True, eq=False)
class Job(Generic[Answer]):
    """One thing to do. Cancelling its future, or its deadline passing, frees what it holds within one step."""

    future: Future[Answer] = field(default_factory=Future, init=False)
    deadline: float | None = field(default=None, kw_only=True)  # on time.monotonic()'s clock
    submitted: float = field(default_factory=time.monotonic, init=False)
    started: float | None = field(default=None, init=False)
    work: float = field(default=1.0, init=False)  # estimated, in the engine's own unit

    def is_dead(self, now: float) -> bool:
        """Whether nobody waits for it any more; a late one is told so here."""
        if self.future.done():
            return True
        if self.deadline is not None and now >= self.deadline:
            self.fail(DeadlineError("the deadline passed before the answer was ready"))
            return True
        return False

    def start(self, now: float) -> None:
        self.started = now

    def succeed(self, answer: Answer) -> None:
        with suppress(InvalidStateError):  # cancelled in the same moment
            self.future.set_result(answer)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)
