from __future__ import annotations

import math
import time
from concurrent.futures import CancelledError, Future

import pytest

from headwaiter.engine.counters import EngineCounters
from headwaiter.engine.job_queue import JobQueue
from headwaiter.engine.jobs import DeadlineError, Job, job_group
from headwaiter.engine.throughput import ThroughputEstimator


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


def put_group(queue: JobQueue[Job[int]], size: int, work: float = 1.0) -> list[Job[int]]:
    with job_group(size):
        jobs: list[Job[int]] = [Job() for _ in range(size)]
    for job in jobs:
        queue.put(job, work)
    return jobs


def test_put_single_jobs_are_served_in_order_of_arrival() -> None:
    queue: JobQueue[Job[int]] = JobQueue(EngineCounters())
    jobs = [job for _ in range(5) for job in put_group(queue, 1)]
    first = queue.take([0, 1])
    later = put_group(queue, 1)
    assert first + list(queue.jobs) == jobs + later


def test_put_later_request_comes_before_the_rest_of_a_long_one() -> None:
    queue: JobQueue[Job[int]] = JobQueue(EngineCounters())
    long = put_group(queue, 300)
    assert queue.take(range(64)) == long[:64]
    short = put_group(queue, 1)
    assert queue.take([0]) == short
    assert list(queue.jobs) == long[64:]


def test_put_requests_share_by_work() -> None:
    queue: JobQueue[Job[int]] = JobQueue(EngineCounters())
    cheap, expensive = put_group(queue, 40, work=1.0), put_group(queue, 40, work=4.0)
    served = queue.take(range(25))
    assert sum(job in cheap for job in served) == 20
    assert sum(job in expensive for job in served) == 5


def test_take_from_the_middle_keeps_the_order_and_the_work() -> None:
    queue: JobQueue[Job[int]] = JobQueue(EngineCounters())
    jobs = put_group(queue, 6)
    assert queue.take([1, 4]) == [jobs[1], jobs[4]]
    assert list(queue.jobs) == [jobs[0], jobs[2], jobs[3], jobs[5]]
    assert (queue.work, queue.counters.waiting) == (4.0, 4)


class OneSlotWorker:
    """A worker without free slots that does one unit of work per second."""

    long_jobs = 0

    def __init__(self) -> None:
        self.throughput = ThroughputEstimator()
        self.throughput.record(10, 10.0)

    def active_slots(self) -> int:
        return 1

    def free_slots(self) -> int:
        return 0


def test_estimated_wait_counts_only_the_jobs_before_a_new_request() -> None:
    queue: JobQueue[Job[int]] = JobQueue(EngineCounters())
    queue.workers.append(OneSlotWorker())
    put_group(queue, 100)
    put_group(queue, 100)
    queue.take([0, 1])
    estimate = queue.estimated_wait()
    assert estimate is not None
    assert estimate.seconds == 0, "of each long request one job has been started"
    for _ in range(3):
        put_group(queue, 1)
    estimate = queue.estimated_wait()
    assert estimate is not None
    assert estimate.seconds == pytest.approx(3)
    assert queue.backlog_seconds() == pytest.approx(201)


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
