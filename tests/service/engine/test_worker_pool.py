"""Several workers over one queue: distribution of jobs, counters, and failure of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event

import pytest

from headwaiter.engine.binding import Binding
from headwaiter.engine.decoder import Decoder
from headwaiter.engine.decoder_pool import open_decoder
from headwaiter.engine.jobs import ClosedError
from headwaiter.engine.sequence import DecodeJob
from headwaiter.engine.session import Session
from headwaiter.engine.worker_pool import WorkerPool
from headwaiter.package.manifest import Package
from tests.conftest import Packages
from tests.service.engine.decoder_kit import decode_job, decoding_parameters, random_texts, run_jobs, running_decoder

MAX_LENGTH, SLOTS = 40, 32  # per worker


@pytest.fixture
def package(packages: Packages) -> Package:
    return packages("marian", "int8").package


@contextmanager
def two_workers(package: Package) -> Iterator[WorkerPool[DecodeJob]]:
    """A pool that is not started: its workers only run steps that the test calls."""
    session = Session(package, threads=2)
    pool = WorkerPool(session, 2 * [partial(Decoder, session, slots=SLOTS, max_length=MAX_LENGTH)])
    try:
        yield pool
    finally:
        pool.close(drain=False)


def decode_jobs(package: Package, count: int, **options: object) -> list[DecodeJob]:
    params = decoding_parameters(package, **options)
    return [decode_job(package, text, params) for text in random_texts(package, count)]


@pytest.mark.parametrize(
    ("threads", "slots", "expected"), [(1, 64, [64]), (2, 64, [32, 32]), (2, 16, [16]), (3, 64, [22, 21, 21])]
)
def test_open_decoder_threads_and_slots_set_worker_count(
    threads: int, slots: int, expected: list[int], package: Package
) -> None:
    engine = open_decoder(Session(package, threads=threads), slots=slots, max_length=MAX_LENGTH)
    workers = engine.workers if isinstance(engine, WorkerPool) else [engine]
    assert [worker.counters.slots for worker in workers] == expected
    assert engine.counters.slots == slots


@pytest.mark.parametrize(("max_beams", "workers"), [(8, 2), (32, 2), (33, 1), (64, 1)])
def test_open_decoder_beams_of_a_job_fit_one_worker(max_beams: int, workers: int, package: Package) -> None:
    engine = open_decoder(Session(package, threads=2), slots=64, max_length=MAX_LENGTH, max_beams=max_beams)
    assert len(engine.workers if isinstance(engine, WorkerPool) else [engine]) == workers
    engine.submit(decode_jobs(package, 1, num_beams=max_beams)[0])


class RecordingSession(Session):
    """Records `reduced_threads` of each binding."""

    def __init__(self, package: Package, *, threads: int) -> None:
        super().__init__(package, threads=threads)
        self.reduced_threads: list[bool] = []

    def binding(self, graph: str, *, reduced_threads: bool = False) -> Binding:
        self.reduced_threads.append(reduced_threads)
        return super().binding(graph, reduced_threads=reduced_threads)


def test_worker_pool_most_workers_busy_reduces_threads(package: Package) -> None:
    session = RecordingSession(package, threads=2)
    pool = open_decoder(session, slots=2 * SLOTS, max_length=MAX_LENGTH)
    assert isinstance(pool, WorkerPool)
    first, second = pool.workers
    early, later = decode_jobs(package, 2), decode_jobs(package, 38)
    for job in early:
        pool.submit(job)
    first.step()
    assert session.reduced_threads == [False], "a single busy worker has all threads"
    for job in later:
        pool.submit(job)
    second.step()
    first.step()
    assert session.reduced_threads[1:] == [True, True]
    pool.start()
    results = [job.future.result(60).hypotheses[0].tokens for job in early + later]
    pool.close()
    with running_decoder(package) as decoder:
        expected = run_jobs(decoder, decode_jobs(package, 2) + decode_jobs(package, 38))
    assert results == [result.hypotheses[0].tokens for result in expected]


@pytest.mark.parametrize(("waiting", "active"), [(3, (3, 0)), (8, (8, 0)), (20, (10, 10)), (100, (32, 32))])
def test_worker_pool_queued_jobs_are_divided_if_many(waiting: int, active: tuple[int, int], package: Package) -> None:
    with two_workers(package) as pool:
        for job in decode_jobs(package, waiting):
            pool.submit(job)
        active_slots = []
        for worker in pool.workers:
            worker.step()
            active_slots.append(worker.active_slots())
        assert tuple(active_slots) == active
        assert pool.counters.slots_in_use == sum(active)
        pool.start()


def test_worker_pool_wide_beams_all_finish(package: Package) -> None:
    with two_workers(package) as pool:
        pool.start()
        jobs = decode_jobs(package, 12, num_beams=8, max_new_tokens=5)
        for job in jobs:
            pool.submit(job)
        assert all(job.future.result(60).hypotheses for job in jobs)
        assert pool.counters.finished == 12


def test_estimated_wait_two_workers_uses_combined_throughput(package: Package) -> None:
    with two_workers(package) as pool:
        assert pool.queue.backlog_seconds() == 0
        for job in decode_jobs(package, 200, max_new_tokens=10):
            pool.submit(job)
        assert pool.queue.backlog_seconds() is None, "no throughput was observed"
        pool.workers[0].throughput.record(1000, 1.0)
        first_only = pool.queue.backlog_seconds()
        pool.workers[1].throughput.record(3000, 1.0)
        both = pool.queue.backlog_seconds()
        assert first_only is not None
        assert both == pytest.approx(first_only / 2)
        pool.start()


class CrashingDecoder(Decoder):
    """Raises outside of a graph run, as a bug in the engine would; failed graph runs are handled."""

    def step(self) -> None:
        raise AssertionError("simulated bug")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_worker_pool_crashed_worker_drains_and_closes(package: Package) -> None:
    session = Session(package, threads=1)
    pool = WorkerPool(
        session,
        [
            partial(CrashingDecoder, session, slots=8, max_length=MAX_LENGTH),
            partial(Decoder, session, slots=8, max_length=MAX_LENGTH),
        ],
    )
    jobs = decode_jobs(package, 40)
    for job in jobs:
        pool.submit(job)
    pool.start()
    for job in jobs:
        assert job.future.result(60).hypotheses, "the other worker drains the queue"
    assert not pool.is_healthy
    with pytest.raises(ClosedError):
        pool.submit(decode_jobs(package, 1)[0])
    pool.close()


def test_worker_pool_close_drains_or_fails_jobs(package: Package) -> None:
    for drain in (True, False):
        with two_workers(package) as pool:
            started = Event()
            jobs = decode_jobs(package, 150)
            jobs[0].on_token = lambda _, started=started: started.set()
            for job in jobs:
                pool.submit(job)
            pool.start()
            assert started.wait(60)
            pool.close(drain=drain)
            failed = [job for job in jobs if job.future.exception(0) is not None]
            assert bool(failed) is not drain
            assert all(isinstance(job.future.exception(0), ClosedError) for job in failed)
