"""The thread that owns a model's sessions and buffers. Others only put jobs into its inbox: there are no locks."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from service.engine.jobs import ClosedError, Job, QueueFullError
from service.engine.meters import Meters
from service.engine.pace import Pace

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
        self._pace = Pace()
        self._line = 0.0  # work that is waiting and cannot start at the next turn
        self._room = 0  # for those who are not in line yet
        self._did = 0.0
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

    def estimated_wait(self) -> float | None:
        """Seconds until a job that came now would start, from the work in line and the pace of late. None as long as
        there has not been a line for long enough to know."""
        unseen = max(0, self._inbox.qsize() - self._room)
        work = self._line + unseen * self.usual_work()
        return self._pace.seconds_for(work) if work else 0.0

    def room(self) -> int:
        """How many more could start at the next turn."""
        return 0

    @abstractmethod
    def work_of(self, job: J) -> float:
        """How much a job will take, in the unit in which `did` counts."""

    def usual_work(self) -> float:
        """Of a job that has not been looked at."""
        return 1.0

    def did(self, work: float) -> None:
        self._did += work

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
                self._timed_turn()
        finally:
            self._closing = True
            for job in self.abandon():
                job.fail(ClosedError(_CLOSED))
            self._refuse_left()

    def _timed_turn(self) -> None:
        begun, self._did = time.monotonic(), 0.0
        self.turn()
        if self._line:  # with room left, an engine works slower than it could
            self._pace.note(self._did, time.monotonic() - begun)

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
        room = self.room()
        self._line = sum(map(self.work_of, islice(self.waiting, room, None)))
        self._room = max(0, room - len(self.waiting))
