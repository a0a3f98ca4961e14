from __future__ import annotations

import math
import time
from concurrent.futures import CancelledError, Future

import pytest

from headwaiter.engine.counters import EngineCounters
from headwaiter.engine.job_queue import JobQueue
from headwaiter.engine.jobs import DeadlineError, Job


class InspectedJob(Job[int]):
    """Counts calls of `is_expired`."""

    inspections = 0

    def is_expired(self, now: float) -> bool:
        InspectedJob.inspections += 1
        return super().is_expired(now)


def queue_with_jobs(*deadlines: float) -> tuple[JobQueue[InspectedJob], list[InspectedJob]]:
    queue: JobQueue[InspectedJob] = JobQueue(EngineCounters())
    jobs = [InspectedJob(deadline=None if deadline == math.inf else deadline) for deadline in deadlines]
    for job in jobs:
        queue.put(job, 1.0)
    return queue, jobs


def test_purge_expired_cancelled_job_is_removed() -> None:
    queue, (first, second, third) = queue_with_jobs(math.inf, math.inf, math.inf)
    second.future.cancel()

    queue.purge_expired()

    assert list(queue.jobs) == [first, third]
    assert (queue.work, queue.counters.waiting, queue.counters.cancelled) == (2.0, 2, 1)
    with pytest.raises(CancelledError):
        second.future.result(0)


def test_purge_expired_overdue_job_fails_with_deadline_error() -> None:
    now = time.monotonic()
    queue, (late, _, without_deadline) = queue_with_jobs(now - 1, now + 600, math.inf)

    queue.purge_expired()

    assert late not in queue.jobs
    assert len(queue.jobs) == 2
    with pytest.raises(DeadlineError):
        late.future.result(0)
    without_deadline.future.cancel()
    queue.purge_expired()
    assert len(queue.jobs) == 1


def test_purge_expired_nothing_expired_does_not_scan_queue() -> None:
    queue, jobs = queue_with_jobs(*[time.monotonic() + 600] * 50)
    before = InspectedJob.inspections

    for _ in range(100):
        queue.purge_expired()
    jobs[0].succeed(1)  # finished, not cancelled

    queue.purge_expired()
    assert InspectedJob.inspections == before


def test_cancellation_while_another_job_finishes_is_not_lost() -> None:
    """The callback of a finished job runs in the worker's thread; the other job is cancelled in the middle of it."""

    class InterruptedFuture(Future[int]):
        def cancelled(self) -> bool:
            other.future.cancel()
            return super().cancelled()

    queue, (other,) = queue_with_jobs(math.inf)
    finished = InspectedJob()
    finished.future = InterruptedFuture()
    queue.put(finished, 1.0)
    finished.succeed(1)
    queue.purge_expired()
    assert other not in queue.jobs
