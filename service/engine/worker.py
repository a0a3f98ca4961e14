"""The thread that owns a model's sessions and buffers. Others only put jobs into its inbox: there are no locks."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from service.engine.jobs import ClosedError, Job, QueueFullError
from service.engine.meters import Meters

J = TypeVar("J", bound=Job[Any])
_CLOSED = "the model was closed before the answer was ready"


class Worker(ABC, Generic[J]):
    """Takes jobs in the order in which they come. Subclasses say what one turn of work is."""

    def __init__(self, name: str, *, max_waiting: int = 4096) -> None:
        self.meters = Meters()
        self.waiting: deque[J] = deque()
        self._max_waiting = max_waiting
        self._inbox: SimpleQueue[J | None] = SimpleQueue()
        self._closing = False
        self._drains = True
        self._thread = threading.Thread(target=self._work, name=f"engine {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: J) -> None:
        if self._closing or not self._thread.is_alive():
            raise ClosedError("the model is closed")
        if len(self.waiting) + self._inbox.qsize() >= self._max_waiting:
            self.meters.refused += 1
            raise QueueFullError(f"{self._max_waiting} requests are waiting already")
        self._inbox.put(job)
        if not self._thread.is_alive():  # it ended in between
            self._refuse_left()

    def close(self, *, drain: bool = True) -> None:
        """Finishes what was accepted, or lets it go; then the thread ends."""
        self._drains = drain
        self._closing = True
        self._inbox.put(None)
        self._thread.join()

    @abstractmethod
    def turn(self) -> None:
        """One bounded piece of work on what is waiting and running."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a turn would do anything."""

    @abstractmethod
    def abandon(self) -> list[J]:
        """Gives up everything that is running, and says what it was."""

    def _work(self) -> None:
        try:
            while self._intake():
                self.turn()
        finally:
            self._closing = True
            for job in self.abandon():
                job.fail(ClosedError(_CLOSED))
            self._refuse_left()

    def _intake(self) -> bool:
        """Takes what has come; waits for something while there is nothing to do. False ends the thread."""
        while True:
            self._take_all()
            if self._closing and not (self._drains and self.is_busy()):
                return False
            self._drop_dead()
            if self.is_busy():
                return True
            self._take(self._inbox.get())

    def _refuse_left(self) -> None:
        self._take_all()
        while self.waiting:
            self.waiting.popleft().fail(ClosedError(_CLOSED))

    def _take_all(self) -> None:
        while True:
            try:
                self._take(self._inbox.get_nowait())
            except Empty:
                return

    def _take(self, job: J | None) -> None:
        if job is not None:
            self.meters.accepted += 1
            self.waiting.append(job)

    def _drop_dead(self) -> None:
        now = time.monotonic()
        if any(job.is_dead(now) for job in self.waiting):
            alive = [job for job in self.waiting if not job.is_dead(now)]
            self.meters.cancelled += len(self.waiting) - len(alive)
            self.waiting = deque(alive)
        self.meters.waiting = len(self.waiting)
