"""An engine is unhealthy if it produces no results: every step fails, or a run does not end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from headwaiter.engine.admission import AdmissionController
from headwaiter.engine.batcher import Batcher, ForwardJob
from headwaiter.engine.binding import Binding
from headwaiter.engine.decoder import Decoder
from headwaiter.engine.episodes import Episodes, PolicyStep, StepJob
from headwaiter.engine.health import MAX_FAILED_STEPS
from headwaiter.engine.jobs import Job, UnhealthyError
from headwaiter.engine.session import Arrays, Session
from headwaiter.engine.worker import Worker
from headwaiter.engine.worker_pool import WorkerPool
from headwaiter.package.manifest import Package
from tests.conftest import Packages
from tests.service.engine.decoder_kit import decode_job, decoding_parameters, random_texts

_UNKNOWN_TOKEN = 10**6  # outside of every embedding table: the graph fails
KINDS = ["bert", "gpt2", "marian", "decision_transformer"]


class SickSession(Session):
    """A runtime that can be made to fail, or to block, every run."""

    def __init__(self, package: Package) -> None:
        self.is_failing = False
        self.seconds_per_run = 0.0
        self.blocked, self.released = threading.Event(), threading.Event()
        self.released.set()
        super().__init__(package, threads=1)

    def run(self, graph: str, feeds: Mapping[str, np.ndarray], *, reduced_threads: bool = False) -> Arrays:
        self.before_run()
        return super().run(graph, feeds, reduced_threads=reduced_threads)

    def binding(self, graph: str, *, reduced_threads: bool = False) -> Binding:
        session, bound = self, super().binding(graph, reduced_threads=reduced_threads)

        class SickBinding(Binding):
            def __init__(self) -> None:
                self.__dict__.update(bound.__dict__)

            def run(self) -> None:
                session.before_run()
                super().run()

        return SickBinding()

    def before_run(self) -> None:
        time.sleep(self.seconds_per_run)
        if self.is_failing:
            raise RuntimeError("simulated failure of the runtime")
        if not self.released.is_set():
            self.blocked.set()
            self.released.wait(60)


def open_worker(session: Session, **options: Any) -> Worker[Any]:
    manifest = session.package.manifest
    if manifest.policy is not None:
        return Episodes(session, slots=4)
    if "decoder" in manifest.graphs:
        return Decoder(session, slots=8, max_length=min(manifest.limits["max_length"], 61), **options)
    return Batcher(session, **options)


def good_job(package: Package) -> Job[Any]:
    manifest = package.manifest
    if manifest.policy is not None:
        return StepJob(None, [PolicyStep(1.0, np.zeros(manifest.policy.state_size, np.float32))])
    if "decoder" in manifest.graphs:
        return decode_job(package, random_texts(package, 1)[0], decoding_parameters(package, max_new_tokens=2))
    return ForwardJob({"tokens": np.full(8, 3), "segments": np.zeros(8, np.int64)})


def poisoned_job(package: Package) -> Job[Any]:
    manifest = package.manifest
    if manifest.policy is not None:
        return StepJob(None, [PolicyStep(1.0, np.zeros(manifest.policy.state_size + 1, np.float32))])
    if "decoder" in manifest.graphs:
        return decode_job(package, [_UNKNOWN_TOKEN, 3], decoding_parameters(package))
    return ForwardJob({"tokens": np.full(8, _UNKNOWN_TOKEN), "segments": np.zeros(8, np.int64)})


@pytest.fixture(params=KINDS)
def package(request: pytest.FixtureRequest, packages: Packages) -> Package:
    return packages(request.param, "fp32").package


@pytest.fixture
def worker(package: Package) -> Iterator[Worker[Any]]:
    """A started worker that has finished a job, as after the warm-up."""
    session = SickSession(package)
    worker = open_worker(session)
    worker.start()
    run(worker, good_job(package))
    yield worker
    session.released.set()
    worker.close(drain=False)


def session_of(worker: Worker[Any]) -> SickSession:
    assert isinstance(worker.session, SickSession)
    return worker.session


def run(worker: Worker[Any], job: Job[Any]) -> BaseException | None:
    worker.submit(job)
    return job.future.exception(60)


def becomes_unhealthy(worker: Worker[Any] | WorkerPool[Any]) -> bool:
    deadline = time.monotonic() + 10
    while worker.is_healthy and time.monotonic() < deadline:
        time.sleep(0.01)
    return not worker.is_healthy


def test_failing_runtime_after_few_steps_makes_engine_unhealthy(worker: Worker[Any], package: Package) -> None:
    session_of(worker).is_failing = True
    errors = [run(worker, good_job(package)) for _ in range(MAX_FAILED_STEPS)]
    assert all(isinstance(error, RuntimeError) for error in errors)
    assert becomes_unhealthy(worker)
    assert worker.health.cause == "failing"
    assert "simulated failure" in worker.health.reason
    with pytest.raises(UnhealthyError):
        worker.submit(good_job(package))
    with pytest.raises(UnhealthyError):
        AdmissionController(worker, name="model").admit()


def test_failing_decoder_steps_without_prefill_make_engine_unhealthy(packages: Packages) -> None:
    package = packages("gpt2", "fp32").package
    worker = open_worker(SickSession(package))
    worker.start()
    assert run(worker, good_job(package)) is None
    session_of(worker).is_failing = True
    for _ in range(MAX_FAILED_STEPS):
        assert run(worker, decode_job(package, [3], decoding_parameters(package))) is not None
    assert becomes_unhealthy(worker)
    worker.close()


def test_failing_runtime_queued_jobs_fail_with_unhealthy_error(worker: Worker[Any], package: Package) -> None:
    session = session_of(worker)
    session.released.clear()
    jobs = [good_job(package) for _ in range(MAX_FAILED_STEPS + 200)]
    worker.submit(jobs[0])
    assert session.blocked.wait(60)
    for job in jobs[1:]:
        worker.submit(job)
    session.is_failing = True
    session.released.set()
    errors = [job.future.exception(60) for job in jobs[1:]]
    failed = [error for error in errors if not isinstance(error, UnhealthyError)]
    if not isinstance(worker, Episodes):  # it runs all queued histories in one step
        assert len(failed) < len(errors)
        assert becomes_unhealthy(worker)


def test_poisoned_input_alone_leaves_engine_healthy(worker: Worker[Any], package: Package) -> None:
    for _ in range(3 * MAX_FAILED_STEPS + 1):
        assert run(worker, poisoned_job(package)) is not None
    assert run(worker, good_job(package)) is None
    assert worker.is_healthy


def test_intermittent_failures_leave_engine_healthy(worker: Worker[Any], package: Package) -> None:
    for _ in range(3):
        session_of(worker).is_failing = True
        for _ in range(MAX_FAILED_STEPS - 1):
            assert run(worker, good_job(package)) is not None
        session_of(worker).is_failing = False
        assert run(worker, good_job(package)) is None
    assert worker.is_healthy


def test_hung_run_fails_all_jobs_and_does_not_block_close(worker: Worker[Any], package: Package) -> None:
    session = session_of(worker)
    worker.check_progress()
    session.released.clear()
    jobs = [good_job(package) for _ in range(3)]
    worker.submit(jobs[0])
    assert session.blocked.wait(60)
    worker.health.run_timeout_s = 0.2
    for job in jobs[1:]:
        worker.submit(job)
    worker.check_progress()
    time.sleep(0.3)
    worker.check_progress()
    assert worker.health.cause == "hung"
    assert all(isinstance(job.future.exception(1), UnhealthyError) for job in jobs)
    with pytest.raises(UnhealthyError):
        worker.submit(good_job(package))
    start = time.monotonic()
    worker.close(drain=True)
    assert time.monotonic() - start < 5
    assert not session.released.is_set()


def test_idle_engine_is_never_hung(worker: Worker[Any]) -> None:
    worker.health.run_timeout_s = 0.05
    time.sleep(0.2)
    worker.check_progress()
    assert worker.is_healthy


class LongStepBatcher(Batcher):
    """Runs all queued inputs in one step, one by one."""

    def step(self) -> None:
        while self.queue.jobs:
            super().step()


def test_long_step_of_short_runs_is_not_hung(packages: Packages) -> None:
    package = packages("bert", "fp32").package
    session = SickSession(package)
    session.seconds_per_run = 0.2
    worker = LongStepBatcher(session, token_budget=1)
    worker.health.run_timeout_s = 0.5
    jobs = [good_job(package) for _ in range(5)]
    for job in jobs:
        worker.submit(job)  # type: ignore[arg-type]
    worker.start()
    while not jobs[-1].future.done():
        worker.check_progress()
        time.sleep(0.01)
    assert worker.is_healthy
    assert all(job.future.exception(0) is None for job in jobs)
    worker.close()


def test_worker_pool_one_failing_worker_makes_engine_unhealthy(packages: Packages) -> None:
    package = packages("bert", "fp32").package
    session = SickSession(package)
    pool: WorkerPool[Any] = WorkerPool(session, 2 * [lambda queue: Batcher(session, queue=queue)])
    pool.start()
    good = good_job(package)
    pool.submit(good)
    assert good.future.exception(60) is None
    session.is_failing = True
    jobs = []
    for _ in range(2 * MAX_FAILED_STEPS):
        jobs.append(good_job(package))
        try:
            pool.submit(jobs[-1])
        except UnhealthyError:
            break
        assert jobs[-1].future.exception(60) is not None
    assert becomes_unhealthy(pool)
    assert pool.health.cause == "failing"
    pool.close()
