"""The thread that owns an engine's buffers. Others only put jobs into its line."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from service.engine.jobs import ClosedError, Job
from service.engine.line import CLOSED, Line
from service.engine.meters import Meters
from service.engine.pace import Pace
from service.engine.session import Session

J = TypeVar("J", bound=Job[Any])


class Engine(Protocol[J]):
    """What a model's engine is to everyone else, be it one thread or several lanes."""

    session: Session

    @property
    def meters(self) -> Meters: ...

    @property
    def line(self) -> Line[J]: ...

    @property
    def is_alive(self) -> bool: ...

    def start(self) -> None: ...

    def submit(self, job: J) -> None: ...

    def estimated_wait(self) -> float | None:
        """Seconds until a job that came now would start, from the work in line and the pace of late. None as long as
        there has not been a line for long enough to know."""

    def close(self, *, drain: bool = True) -> None:
        """Finishes what was accepted, or lets it go; then the threads end."""


class Worker(ABC, Generic[J]):
    """Takes jobs in the order in which they come. Subclasses say what one turn of work is."""

    def __init__(self, session: Session, *, max_waiting: int = 4096, line: Line[J] | None = None) -> None:
        self.session = session
        self.meters = Meters()
        self.line: Line[J] = Line(self.meters, most=max_waiting) if line is None else line
        self.line.takers.append(self)
        self.pace = Pace()
        self._did = 0.0
        name = session.package.manifest.name
        self._thread = threading.Thread(target=self._work, name=f"engine {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: J) -> None:
        self.line.put(job, self.work_of(job))

    def close(self, *, drain: bool = True) -> None:
        self.line.close(drain=drain)
        self.join()

    def join(self) -> None:
        self._thread.join()

    def estimated_wait(self) -> float | None:
        return seconds_for(self.line.work_beyond(self.room()), self.pace.rate)

    def load(self) -> int:
        return self.meters.rows_in_use

    def room(self) -> int:
        """How many more could start at the next turn."""
        return 0

    @abstractmethod
    def work_of(self, job: J) -> float:
        """How much a job will take, in the unit in which `did` counts."""

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
            while self._await_work():
                self._timed_turn()
        finally:
            self.line.leave(self)
            for job in self.abandon():
                job.fail(ClosedError(CLOSED))

    def _timed_turn(self) -> None:
        begun, self._did = time.monotonic(), 0.0
        self.turn()
        if self.line.jobs:  # with none left waiting, an engine works slower than it could
            self.pace.note(self._did, time.monotonic() - begun)

    def _await_work(self) -> bool:
        """False ends the thread."""
        with self.line.changed:
            while True:
                self.line.drop_dead()
                if self.line.is_closed and not (self.line.drains and self.is_busy()):
                    return False
                if self.is_busy():
                    return True
                self.line.changed.wait()


def seconds_for(work: float, rate: float | None) -> float | None:
    if not work:
        return 0.0
    return None if rate is None else work / rate
