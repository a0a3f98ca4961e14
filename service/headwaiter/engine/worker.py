"""Worker thread that owns an engine's buffers and runs its steps; other threads only enqueue jobs."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from headwaiter.engine.counters import EngineCounters
from headwaiter.engine.health import EngineHealth, StepFailures, one_line
from headwaiter.engine.job_queue import JobQueue
from headwaiter.engine.jobs import Job
from headwaiter.engine.session import Session
from headwaiter.engine.throughput import ThroughputEstimator

JobT = TypeVar("JobT", bound=Job[Any])
_JOIN_POLL_SECONDS = 0.5  # between two checks whether a thread that should end is hung


class Engine(Protocol[JobT]):
    """Interface of a model's engine: a single worker or a pool of workers."""

    session: Session

    @property
    def counters(self) -> EngineCounters: ...

    @property
    def queue(self) -> JobQueue[JobT]: ...

    @property
    def is_healthy(self) -> bool:
        """Whether all workers run and produce results. An engine that is not healthy rejects jobs."""

    @property
    def health(self) -> EngineHealth: ...

    def start(self) -> None: ...

    def submit(self, job: JobT) -> None:
        """Enqueue a job. Raises `ClosedError`."""

    def close(self, *, drain: bool = True) -> None:
        """Finish the accepted jobs, or fail them with `ClosedError` if not `drain`; then join the threads.

        Does not wait for a hung thread.
        """

    def check_progress(self) -> None:
        """If a worker is hung, mark the engine as unhealthy and fail all jobs. Call it about once per second."""


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
        self._step_started: float | None = None
        self._last_error: Exception | None = None
        self._step_failures = StepFailures(self.health, self._self_check)
        name = session.package.manifest.name
        self._thread = threading.Thread(target=self._run_loop, name=f"engine {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def health(self) -> EngineHealth:
        return self.queue.health

    @property
    def is_healthy(self) -> bool:
        return self._thread.is_alive() and self.health.is_healthy

    def submit(self, job: JobT) -> None:
        self.queue.put(job, self.estimate_work(job))

    def close(self, *, drain: bool = True) -> None:
        self.queue.close(drain=drain)
        self.join()

    def join(self) -> None:
        """Wait until the thread has ended, or is hung."""
        while self._thread.is_alive() and not self.is_hung():
            self._thread.join(_JOIN_POLL_SECONDS)

    def is_hung(self) -> bool:
        """Whether a step is running in which no graph run has ended for `run_timeout_s`."""
        step_started = self._step_started
        if step_started is None:
            return False
        last_progress = max(step_started, self.session.last_run_end(self._thread.ident))
        return time.monotonic() - last_progress > self.health.run_timeout_s

    def check_progress(self) -> None:
        if not self.is_hung():
            return
        self.health.mark_unhealthy("hung", f"a run of the graph has not ended for {self.health.run_timeout_s:g} s")
        self.queue.close(drain=False)
        self.queue.fail_all()
        for job in self.abort_running():
            job.fail(self.queue.closed_error())

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
    def run_alone(self, job: JobT) -> None:
        """Run a job that was not submitted to its end. No other job is running."""

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a step would do any work."""

    @abstractmethod
    def abort_running(self) -> list[JobT]:
        """Stop all running jobs and return them."""

    def fail_job(self, job: JobT, error: Exception) -> None:
        """Fail a job that could not be run."""
        self.counters.failed += 1
        self._last_error = error
        job.fail(error)

    def _run_loop(self) -> None:
        try:
            while self._wait_for_work():
                self._timed_step()
        except BaseException as error:
            self.health.mark_unhealthy("crashed", f"a worker ended with {one_line(error)}")
            raise
        finally:
            self.queue.detach(self)
            for job in self.abort_running():
                job.fail(self.queue.closed_error())

    def _timed_step(self) -> None:
        start, self._work_done, failed = time.monotonic(), 0.0, self.counters.failed
        self._step_started = start
        self.step()
        self._step_failures.record(failed=self.counters.failed > failed, made_progress=self._work_done > 0)
        self._step_started = None
        if self.health.cause == "failing":
            self.queue.close(drain=False)
        if self.queue.jobs:  # without a backlog the engine runs below its maximum throughput
            self.throughput.record(self._work_done, time.monotonic() - start)

    def _self_check(self) -> Exception | None:
        """Run the known good input again and return what it fails with."""
        if self.health.known_good is None:  # nothing ever succeeded
            return self._last_error
        job: JobT = replace(self.health.known_good)  # type: ignore[assignment]
        self._last_error = None
        self.run_alone(job)
        return self._last_error

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
