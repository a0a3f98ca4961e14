"""The line in which jobs wait, oldest first, for the thread of an engine, or for its several lanes."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from service.engine.jobs import ClosedError, Job, QueueFullError
from service.engine.meters import Meters

J = TypeVar("J", bound=Job[Any])
CLOSED = "the model was closed before the answer was ready"


class Taker(Protocol):
    def load(self) -> int:
        """How many rows it runs."""


class Line(Generic[J]):
    """Anyone may add to it. Whoever takes from `jobs` holds `changed`, the engine's only lock, for a moment."""

    def __init__(self, meters: Meters, *, most: int = 4096) -> None:
        self.meters = meters
        self.changed = threading.Condition()
        self.jobs: deque[J] = deque()
        self.work = 0.0  # of all that wait, as estimated when they came
        self.takers: list[Taker] = []  # the threads that it feeds
        self.is_closed = False
        self.drains = True
        self._most = most
        self._soonest = math.inf  # of the deadlines in line
        self._someone_left = False

    def work_beyond(self, room: int) -> float:
        """Of those who cannot start at the next turn, because so many others can."""
        waiting = len(self.jobs)
        return self.work * (waiting - room) / waiting if waiting > room else 0.0

    def put(self, job: J, work: float) -> None:
        with self.changed:
            if self.is_closed:
                raise ClosedError("the model is closed")
            if len(self.jobs) >= self._most:
                self.meters.refused += 1
                raise QueueFullError(f"{self._most} requests are waiting already")
            job.work = work
            job.future.add_done_callback(self._note_leaving)
            self._soonest = min(self._soonest, math.inf if job.deadline is None else job.deadline)
            self.meters.accepted += 1
            self.jobs.append(job)
            self._count(self.work + work)
            self.changed.notify()

    def took(self, jobs: Iterable[J]) -> None:
        """These have left `jobs`."""
        self._count(self.work - sum(job.work for job in jobs) if self.jobs else 0.0)

    def keep(self, jobs: Iterable[J]) -> None:
        """These go on waiting, the others have left."""
        self.jobs = deque(jobs)
        self._count(sum(job.work for job in self.jobs))

    def drop_dead(self) -> None:
        """Looks through the line only when somebody may have left it: it is asked at every turn, and may be long."""
        now = time.monotonic()
        if not self._someone_left and now < self._soonest:
            return
        with self.changed:
            self._someone_left = False  # before looking: who leaves from now on is seen next time
            alive = [job for job in self.jobs if not job.is_dead(now)]
            self._soonest = min((job.deadline for job in alive if job.deadline is not None), default=math.inf)
            if len(alive) < len(self.jobs):
                self.meters.cancelled += len(self.jobs) - len(alive)
                self.keep(alive)

    def close(self, *, drain: bool) -> None:
        with self.changed:
            self.is_closed, self.drains = True, drain
            self.changed.notify_all()

    def leave(self, taker: Taker) -> None:
        """A thread ends: nobody may come any more, and when it was the last, nobody need wait."""
        with self.changed:
            self.close(drain=self.drains)
            self.takers.remove(taker)
            if not self.takers:
                for job in self.jobs:
                    job.fail(ClosedError(CLOSED))
                self.keep(())

    def _note_leaving(self, future: Future[Any]) -> None:
        self._someone_left |= future.cancelled()

    def _count(self, work: float) -> None:
        self.work, self.meters.waiting = work, len(self.jobs)
