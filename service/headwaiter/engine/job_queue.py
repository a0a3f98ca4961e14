"""FIFO queue of jobs that feeds the workers of an engine."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

from headwaiter.engine.counters import EngineCounters
from headwaiter.engine.health import EngineHealth
from headwaiter.engine.jobs import ClosedError, Job, UnhealthyError

JobT = TypeVar("JobT", bound=Job[Any])
CLOSED_MESSAGE = "the model was closed before the result was ready"


class QueueWorker(Protocol):
    def active_slots(self) -> int:
        """Number of slots in use."""


class JobQueue(Generic[JobT]):
    """Any thread may call `put`. A worker that removes from `jobs` holds `condition`, the engine's only lock."""

    def __init__(self, counters: EngineCounters) -> None:
        self.counters = counters
        self.health = EngineHealth()
        self.condition = threading.Condition()
        self.jobs: deque[JobT] = deque()
        self.work = 0.0  # estimated work of all queued jobs
        self.workers: list[QueueWorker] = []
        self.is_closed = False
        self.drain_on_close = True
        self._earliest_deadline = math.inf
        self._has_cancelled_jobs = False

    def backlog_work(self, free_slots: int) -> float:
        """Estimated work of the queued jobs beyond the first `free_slots`, which can start at the next step."""
        waiting = len(self.jobs)
        return self.work * (waiting - free_slots) / waiting if waiting > free_slots else 0.0

    def put(self, job: JobT, work: float) -> None:
        """Append a job. Raises `ClosedError` if the queue is closed. Its length is limited by admission control."""
        with self.condition:
            if self.is_closed:
                raise self.closed_error("the model is closed")
            job.work = work
            job.future.add_done_callback(self._on_job_done)
            self._earliest_deadline = min(self._earliest_deadline, math.inf if job.deadline is None else job.deadline)
            self.counters.accepted += 1
            self.jobs.append(job)
            self._update_counters(self.work + work)
            self.condition.notify()

    def mark_dequeued(self, jobs: Iterable[JobT]) -> None:
        """Account for jobs that the caller has removed from `jobs`."""
        self._update_counters(self.work - sum(job.work for job in jobs) if self.jobs else 0.0)

    def replace(self, jobs: Iterable[JobT]) -> None:
        """Replace the queued jobs."""
        self.jobs = deque(jobs)
        self._update_counters(sum(job.work for job in self.jobs))

    def purge_expired(self) -> None:
        """Remove cancelled and overdue jobs.

        Scans the queue only if a job was cancelled or a deadline has passed, because it is called at every step.
        """
        now = time.monotonic()
        if not self._has_cancelled_jobs and now < self._earliest_deadline:
            return
        with self.condition:
            self._has_cancelled_jobs = False  # reset before the scan, so that later cancellations are not missed
            alive = [job for job in self.jobs if not job.is_expired(now)]
            self._earliest_deadline = min((job.deadline for job in alive if job.deadline is not None), default=math.inf)
            if len(alive) < len(self.jobs):
                self.counters.cancelled += len(self.jobs) - len(alive)
                self.replace(alive)

    def close(self, *, drain: bool) -> None:
        with self.condition:
            self.is_closed, self.drain_on_close = True, drain
            self.condition.notify_all()

    def detach(self, worker: QueueWorker) -> None:
        """Close the queue because a worker ends; if it was the last worker, fail the remaining jobs."""
        with self.condition:
            self.close(drain=self.drain_on_close)
            self.workers.remove(worker)
            if not self.workers:
                self.fail_all()

    def fail_all(self) -> None:
        """Fail the queued jobs."""
        with self.condition:
            for job in self.jobs:
                job.fail(self.closed_error())
            self.replace(())

    def closed_error(self, message: str = CLOSED_MESSAGE) -> ClosedError:
        """Why jobs are not run: the engine is unhealthy or, with `message`, it was closed."""
        return ClosedError(message) if self.health.is_healthy else UnhealthyError(self.health.reason)

    def _on_job_done(self, future: Future[Any]) -> None:
        self._has_cancelled_jobs |= future.cancelled()

    def _update_counters(self, work: float) -> None:
        self.work, self.counters.waiting = work, len(self.jobs)
