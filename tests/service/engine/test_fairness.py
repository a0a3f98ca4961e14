"""A request with many sequences does not delay short requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headwaiter.engine.decoder_pool import open_decoder
from headwaiter.engine.jobs import job_group
from headwaiter.engine.sequence import DecodeJob
from headwaiter.engine.session import Session
from headwaiter.engine.worker_pool import WorkerPool
from headwaiter.package.manifest import Package
from tests.conftest import Packages
from tests.service.engine.decoder_kit import decode_job, decoding_parameters, random_texts, run_jobs, running_decoder

MAX_LENGTH, SLOTS = 40, 64


@pytest.fixture
def package(packages: Packages) -> Package:
    return packages("marian", "int8").package


@pytest.fixture(params=[1, 2])
def pool(request: pytest.FixtureRequest, package: Package) -> Iterator[WorkerPool[DecodeJob]]:
    """A decoder with one or two workers and the reserved one. Not started: tests call the steps of its workers."""
    engine = open_decoder(Session(package, threads=request.param), slots=SLOTS, max_length=MAX_LENGTH)
    assert isinstance(engine, WorkerPool)
    assert len(engine.workers) == request.param
    yield engine
    engine.close(drain=False)


def submit_request(pool: WorkerPool[DecodeJob], package: Package, sequences: int, **options: object) -> list[DecodeJob]:
    params = decoding_parameters(package, **options)
    with job_group(sequences):
        jobs = [decode_job(package, text, params) for text in random_texts(package, sequences, seed=sequences)]
    for job in jobs:
        pool.submit(job)
    return jobs


def test_short_request_beside_a_long_one_starts_at_once_in_the_reserved_worker(
    pool: WorkerPool[DecodeJob], package: Package
) -> None:
    long = submit_request(pool, package, 200, max_new_tokens=10)
    for worker in pool.workers:
        worker.step()
    assert pool.counters.slots_in_use == SLOTS
    (short,) = submit_request(pool, package, 1, max_new_tokens=10)
    assert pool.reserved is not None
    assert pool.reserved.is_busy()
    pool.reserved.step()
    assert short.started is not None
    assert pool.reserved.active_slots() == 1
    while not short.future.done():
        pool.reserved.step()
    pool.start()
    results = [job.future.result(60).hypotheses[0].tokens for job in [short, *long]]
    with running_decoder(package) as decoder:
        params = decoding_parameters(package, max_new_tokens=10)
        texts = [*random_texts(package, 1, seed=1), *random_texts(package, 200, seed=200)]
        expected = run_jobs(decoder, [decode_job(package, text, params) for text in texts])
    assert results == [result.hypotheses[0].tokens for result in expected]


def test_worker_with_a_long_request_leaves_short_ones_to_the_reserved_worker_while_that_has_room(
    pool: WorkerPool[DecodeJob], package: Package
) -> None:
    submit_request(pool, package, 200, max_new_tokens=2)
    for worker in pool.workers:
        worker.step()
    short = [job for _ in range(3) for job in submit_request(pool, package, 1, num_beams=4, max_new_tokens=2)]
    for worker in pool.workers:
        worker.step()  # the first sequences end, and their slots are free
        worker.step()
    assert not any(job.started for job in short[:2])
    assert pool.reserved is not None
    pool.reserved.step()
    assert [job.started is not None for job in short] == [True, True, False], "it has slots for two of 4 beams"
    for worker in 4 * pool.workers:
        worker.step()
    assert short[2].started is not None, "the other workers take what the reserved worker has no room for"
    pool.start()
    assert all(job.future.result(60).hypotheses for job in short)


def test_reserved_worker_is_idle_without_long_requests(pool: WorkerPool[DecodeJob], package: Package) -> None:
    jobs = [job for _ in range(100) for job in submit_request(pool, package, 1)]
    for worker in pool.workers:
        worker.step()
    assert pool.queue.short_jobs == 100 - SLOTS
    assert pool.reserved is not None
    assert not pool.reserved.is_busy()
    pool.start()
    assert all(job.future.result(60).hypotheses for job in jobs)
    assert pool.reserved.counters.steps == 0
    assert pool.counters.slots == SLOTS


def test_short_requests_finish_before_a_long_one_that_came_first(package: Package) -> None:
    engine = open_decoder(Session(package, threads=2), slots=SLOTS, max_length=MAX_LENGTH)
    assert isinstance(engine, WorkerPool)
    engine.start()
    try:
        long = submit_request(engine, package, 600)
        short = [submit_request(engine, package, 1)[0] for _ in range(20)]
        for job in short:
            job.future.result(60)
        assert sum(job.future.done() for job in long) < len(long)
        for job in long:
            job.future.result(60)
    finally:
        engine.close(drain=False)
