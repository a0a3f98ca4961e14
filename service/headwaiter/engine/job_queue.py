"""Fair queue of jobs that feeds the workers of an engine."""

from __future__ import annotations

import math
import threading
import time
from bisect import insort_right
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from headwaiter.engine.counters import EngineCounters
from headwaiter.engine.health import EngineHealth
from headwaiter.engine.jobs import ClosedError, Job, UnhealthyError
from headwaiter.engine.throughput import ThroughputEstimator, WaitCalibration, WaitEstimate

JobT = TypeVar("JobT", bound=Job[Any])
_START_TAG = attrgetter("start_tag")
CLOSED_MESSAGE = "the model was closed before the result was ready"


class QueueWorker(Protocol):
    throughput: ThroughputEstimator
    long_jobs: int

    def active_slots(self) -> int:
        """Number of slots in use."""

    def free_slots(self) -> int:
        """Number of jobs that could start at the next step."""


class ReservedWorker(QueueWorker, Protocol):
    """Runs short requests while the other workers run long ones."""

    is_idle: threading.Event


class JobQueue(Generic[JobT]):
    """Any thread may call `put`. A worker that removes from `jobs` holds `condition`, the engine's only lock.

    The order is start-time fair queueing: each request advances in virtual time by the work of its jobs, and the job
    with the smallest start tag comes first. A request with many jobs thus shares the engine with those that come later
    instead of delaying them; requests with one job each are served in the order of their arrival.
    """

    def __init__(self, counters: EngineCounters) -> None:
        self.counters = counters
        self.health = EngineHealth()
        lock = threading.RLock()
        self.condition = threading.Condition(lock)
        self.reserved_condition = threading.Condition(lock)  # for the reserved worker, which waits for short jobs
        self.jobs: deque[JobT] = deque()
        self.work = 0.0  # estimated work of all queued jobs
        self.short_jobs = self.long_jobs = 0
        self.workers: list[QueueWorker] = []
        self.reserved_worker: ReservedWorker | None = None
        self.calibration = WaitCalibration()
        self.is_closed = False
        self.drain_on_close = True
        self._virtual_time = 0.0  # start tag of the last job that was dequeued
        self._earliest_deadline = math.inf
        self._has_cancelled_jobs = False

    def estimated_wait(self) -> WaitEstimate | None:
        """Estimated queueing delay of a request that is submitted now, or None until enough work was observed.

        Only the jobs that come before the first job of that request count, which are few if they belong to few
        requests.
        """
        with self.condition:
            if not self.jobs or self.jobs[-1].start_tag <= self._virtual_time:
                ahead, work = len(self.jobs), self.work
            else:
                ahead, work = 0, 0.0
                for job in self.jobs:
                    if job.start_tag > self._virtual_time:
                        break
                    ahead, work = ahead + 1, work + job.work
            seconds = self._seconds(ahead, work)
        return None if seconds is None else self.calibration.estimate(seconds)

    def backlog_seconds(self) -> float | None:
        """Estimated time until all queued jobs have started, or None until enough work was observed."""
        with self.condition:
            seconds = self._seconds(len(self.jobs), self.work)
        return None if seconds is None else self.calibration.estimate(seconds).seconds

    def _seconds(self, jobs: int, work: float) -> float | None:
        """Estimated time until `jobs` queued jobs have started; as many as there are free slots start at once."""
        free_slots = sum(worker.free_slots() for worker in self.workers)
        if jobs <= free_slots:
            return 0.0
        rates = [worker.throughput.rate for worker in self.workers]
        known = [rate for rate in rates if rate is not None]
        if not known:
            return None
        return work * (jobs - free_slots) / jobs / (sum(known) / len(known) * len(rates))

    def put(self, job: JobT, work: float) -> None:
        """Append a job. Raises `ClosedError` if the queue is closed. Its length is limited by admission control."""
        with self.condition:
            if self.is_closed:
                raise self.closed_error("the model is closed")
            group, job.work = job.group, work
            if not group.finish_tag:
                job.wait_estimate = self.estimated_wait()
            job.start_tag = max(self._virtual_time, group.finish_tag)
            group.finish_tag = job.start_tag + work
            job.future.add_done_callback(self._on_job_done)
            self._earliest_deadline = min(self._earliest_deadline, math.inf if job.deadline is None else job.deadline)
            self.counters.accepted += 1
            insort_right(self.jobs, job, key=_START_TAG)
            self.short_jobs += job.is_short
            self.long_jobs += job.is_long
            self._update_counters(self.work + work)
            self.condition.notify()
            if job.is_short:
                self.reserved_condition.notify()

    def take(self, indices: Sequence[int]) -> list[JobT]:
        """Remove and return the jobs at the ascending `indices`. The caller holds `condition`."""
        if not indices:
            return []
        taken = [self.jobs[index] for index in indices]
        if indices[-1] == len(indices) - 1:
            for _ in indices:
                self.jobs.popleft()
        else:
            removed = set(indices)
            self.jobs = deque(job for index, job in enumerate(self.jobs) if index not in removed)
        for job in taken:
            self._virtual_time = max(self._virtual_time, job.start_tag)
            self.short_jobs -= job.is_short
            self.long_jobs -= job.is_long
            self.work -= job.work
        self._update_counters(self.work if self.jobs else 0.0)
        return taken

    def replace(self, jobs: Iterable[JobT]) -> None:
        """Replace the queued jobs."""
        self.jobs = deque(jobs)
        self.short_jobs = sum(job.is_short for job in self.jobs)
        self.long_jobs = sum(job.is_long for job in self.jobs)
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
            self.reserved_condition.notify_all()

    def detach(self, worker: QueueWorker) -> None:
        """Close the queue because a worker ends; if it was the last worker, fail the remaining jobs."""
        with self.condition:
            self.close(drain=self.drain_on_close)
            if worker is self.reserved_worker:
                self.reserved_worker = None
                return
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
        if future.cancelled():  # never written otherwise: other threads may set it meanwhile
            self._has_cancelled_jobs = True

    def _update_counters(self, work: float) -> None:
        self.work, self.counters.waiting = work, len(self.jobs)
