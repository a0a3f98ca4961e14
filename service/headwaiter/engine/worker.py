"""Worker thread that owns an engine's buffers and runs its steps; other threads only enqueue jobs."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Generic, Protocol, TypeVar

from headwaiter.engine.counters import EngineCounters
from headwaiter.engine.job_queue import CLOSED_MESSAGE, JobQueue
from headwaiter.engine.jobs import ClosedError, Job
from headwaiter.engine.session import Session
from headwaiter.engine.throughput import ThroughputEstimator

JobT = TypeVar("JobT", bound=Job[Any])


class Engine(Protocol[JobT]):
    """Interface of a model's engine: a single worker or a pool of workers."""

    session: Session

    @property
    def counters(self) -> EngineCounters: ...

    @property
    def queue(self) -> JobQueue[JobT]: ...

    @property
    def is_alive(self) -> bool: ...

    def start(self) -> None: ...

    def submit(self, job: JobT) -> None:
        """Enqueue a job. Raises `ClosedError`."""

    def close(self, *, drain: bool = True) -> None:
        """Finish the accepted jobs, or fail them with `ClosedError` if not `drain`; then join the threads."""


class Worker(ABC, Generic[JobT]):
    """Runs jobs in a thread of its own. Subclasses define one step of work."""

    def __init__(self, session: Session, queue: JobQueue[JobT] | None = None) -> None:
        self.session = session
        self.counters = EngineCounters()
        self.queue: JobQueue[JobT] = JobQueue(self.counters) if queue is None else queue
        self.queue.workers.append(self)
        self.work_condition = self.queue.condition
        self.throughput = ThroughputEstimator()
        self.long_jobs = 0
        self._work_done = 0.0
        name = session.package.manifest.name
        self._thread = threading.Thread(target=self._run_loop, name=f"engine {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, job: JobT) -> None:
        self.queue.put(job, self.estimate_work(job))

    def close(self, *, drain: bool = True) -> None:
        self.queue.close(drain=drain)
        self.join()

    def join(self) -> None:
        self._thread.join()

    def active_slots(self) -> int:
        return self.counters.slots_in_use

    def free_slots(self) -> int:
        """Number of jobs that could start at the next step."""
        return 0

    @abstractmethod
    def estimate_work(self, job: JobT) -> float:
        """Estimated cost of a job, in the unit of `record_work`."""

    def start_job(self, job: JobT, now: float) -> None:
        """Mark a job as started and record how long it has waited."""
        job.start(now)
        waited = now - job.submitted
        self.counters.queue_seconds += waited
        if job.wait_estimate is not None:
            self.queue.calibration.record(job.wait_estimate, waited)

    def record_work(self, work: float) -> None:
        self._work_done += work

    @abstractmethod
    def step(self) -> None:
        """Do one bounded piece of work on the queued and running jobs."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a step would do any work."""

    @abstractmethod
    def abort_running(self) -> list[JobT]:
        """Stop all running jobs and return them."""

    def _run_loop(self) -> None:
        try:
            while self._wait_for_work():
                self._timed_step()
        finally:
            self.queue.detach(self)
            for job in self.abort_running():
                job.fail(ClosedError(CLOSED_MESSAGE))

    def _timed_step(self) -> None:
        start, self._work_done = time.monotonic(), 0.0
        self.step()
        if self.queue.jobs:  # without a backlog the engine runs below its maximum throughput
            self.throughput.record(self._work_done, time.monotonic() - start)

    def _wait_for_work(self) -> bool:
        """Block until a step has work to do. Returns False when the thread should end."""
        with self.queue.condition:
            while True:
                self.queue.purge_expired()
                if self.queue.is_closed and not (self.queue.drain_on_close and self.is_busy()):
                    return False
                if self.is_busy():
                    return True
                self.work_condition.wait()
