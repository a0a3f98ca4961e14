"""Batches stay within the budget and are formed oldest first; results do not depend on the batch."""

from __future__ import annotations

import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter.engine.batcher import (
    GRAPH,
    MAX_PADDING_RATIO,
    Batcher,
    ForwardJob,
    ForwardResult,
    InputShape,
    form_batch,
    open_batcher,
)
from headwaiter.engine.jobs import ClosedError, DeadlineError
from headwaiter.engine.session import Arrays, Session
from headwaiter.engine.worker import Engine
from headwaiter.engine.worker_pool import WorkerPool
from headwaiter.package.manifest import Package, Precision, padded_length
from tests.conftest import Packages

text_shapes = st.integers(1, 40).map(lambda n: InputShape((), 16 * n))
image_shapes = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda size: InputShape(size, size[0] * size[1]))
queues = st.one_of(st.lists(text_shapes, min_size=1, max_size=60), st.lists(image_shapes, min_size=1, max_size=60))


@given(queue=queues, budget=st.integers(1, 3000))
def test_form_batch_random_queue_has_oldest_and_stays_within_budget(queue: list[InputShape], budget: int) -> None:
    batch = form_batch(queue, budget)
    members = [queue[index] for index in batch]
    assert batch[0] == 0
    assert batch == sorted(set(batch))
    assert {member.batch_key for member in members} == {queue[0].batch_key}
    elements = len(members) * max(member.elements for member in members)
    assert elements <= budget or len(members) == 1
    assert elements <= MAX_PADDING_RATIO * sum(member.elements for member in members)


@given(queue=queues, budget=st.integers(1, 3000))
def test_form_batch_repeated_runs_each_job_once(queue: list[InputShape], budget: int) -> None:
    waiting, completed = list(range(len(queue))), []
    batches = 0
    while waiting:
        batch = [waiting[position] for position in form_batch([queue[index] for index in waiting], budget)]
        completed += batch
        waiting = [index for index in waiting if index not in batch]
        batches += 1
        assert all(index in completed for index in range(batches))  # job n is in one of the first n + 1 batches
    assert sorted(completed) == list(range(len(queue)))


@given(queue=st.lists(text_shapes, min_size=1, max_size=40))
def test_form_batch_equal_shapes_are_batched_in_order(queue: list[InputShape]) -> None:
    equal = [index for index, input_shape in enumerate(queue) if input_shape == queue[0]]
    budget = 3 * queue[0].elements
    assert form_batch(queue, budget)[:3] == equal[:3] or len(equal) < 3


class BlockingSession(Session):
    """A session whose runs block until `released` is set."""

    def __init__(self, package: Package) -> None:
        super().__init__(package, threads=1)
        self.started, self.released = threading.Event(), threading.Event()
        self.released.set()
        self.during_run: Callable[[], object] = lambda: None

    def run(self, graph: str, feeds: Mapping[str, np.ndarray]) -> Arrays:
        self.started.set()
        self.released.wait(60)
        self.during_run()
        return super().run(graph, feeds)


def start_batcher(packages: Packages, kind: str, precision: Precision = "fp32", **options: Any) -> Batcher:
    batcher = Batcher(BlockingSession(packages(kind, precision).package), **options)
    batcher.start()
    return batcher


@pytest.fixture
def batcher(packages: Packages) -> Iterator[Batcher]:
    batcher = start_batcher(packages, "bert")
    yield batcher
    if batcher.is_healthy:
        batcher.close()


@contextmanager
def while_busy(batcher: Batcher, first: ForwardJob) -> Iterator[None]:
    """Run `first` alone; jobs submitted inside the context are queued until it ends."""
    session = batcher.session
    assert isinstance(session, BlockingSession)
    session.released.clear()
    batcher.submit(first)
    assert session.started.wait(60)
    yield
    session.released.set()


def submit_together(batcher: Batcher, jobs: Sequence[ForwardJob], first: ForwardJob) -> None:
    with while_busy(batcher, first):
        for job in jobs:
            batcher.submit(job)


def random_text(rng: np.random.Generator, batcher: Engine[ForwardJob], length: int | None = None) -> Arrays:
    max_length = batcher.session.package.manifest.limits["length"]
    length = length or int(rng.integers(1, max_length + 1))
    arrays = {"tokens": rng.integers(5, 90, length), "segments": (np.arange(length) > length // 2).astype(np.int64)}
    inputs = {port.name for port in batcher.session.package.manifest.graphs[GRAPH].inputs}
    return {name: value for name, value in arrays.items() if name in inputs}


def random_image(rng: np.random.Generator, batcher: Batcher) -> Arrays:
    limits = batcher.session.package.manifest.limits
    height, width = limits.get("height", int(rng.choice([48, 64]))), limits.get("width", int(rng.choice([48, 80])))
    return {"pixels": rng.standard_normal((3, height, width)).astype(np.float32)}


def wait_for(jobs: Sequence[ForwardJob]) -> list[ForwardResult]:
    return [job.future.result(60) for job in jobs]


def assert_same_outputs(results: Sequence[ForwardResult], expected: Sequence[Arrays]) -> None:
    for result, outputs in zip(results, expected, strict=True):
        assert result.outputs.keys() == outputs.keys()
        for name, value in outputs.items():
            assert np.array_equal(result.outputs[name], value), name


def run_unbatched(session: Session, arrays: Arrays) -> Arrays:
    """Run one input directly in the session, padded as a batch of one."""
    feeds = {name: value[None] for name, value in arrays.items()}
    if "tokens" in arrays:
        length = len(arrays["tokens"])
        padding = min(padded_length(length), session.package.manifest.limits["length"]) - length
        feeds = {name: np.pad(value, ((0, 0), (0, padding))) for name, value in feeds.items()}
        feeds["lengths"] = np.array([length], np.int32)
    return {name: value[0] for name, value in session.run(GRAPH, feeds).items()}


@pytest.mark.parametrize(
    ("kind", "precision", "make_input"),
    [
        ("bert", "fp32", random_text),
        pytest.param("bert", "int8", random_text, marks=pytest.mark.slow),
        pytest.param("distilbert", "fp32", random_text, marks=pytest.mark.slow),
        ("vit", "fp32", random_image),
        pytest.param("vit", "int8", random_image, marks=pytest.mark.slow),
        ("detr", "fp32", random_image),
    ],
)
def test_batcher_batched_jobs_equal_unbatched(
    packages: Packages,
    kind: str,
    precision: Precision,
    make_input: Callable[[np.random.Generator, Batcher], Arrays],
) -> None:
    batcher = start_batcher(packages, kind, precision, pixel_budget=6 * 64 * 80)
    rng = np.random.default_rng(3)
    inputs = [make_input(rng, batcher) for _ in range(40)]
    expected = [run_unbatched(batcher.session, arrays) for arrays in inputs]
    first, *others = jobs = [ForwardJob(arrays) for arrays in inputs]
    submit_together(batcher, others, first)
    assert_same_outputs(wait_for(jobs), expected)
    batcher.close()
    counters = batcher.counters
    assert counters.accepted == counters.finished == counters.slot_steps == 40
    assert counters.steps < 25
    assert counters.elements > counters.padding_elements >= 0
    assert counters.input_tokens == sum(len(arrays.get("tokens", ())) for arrays in inputs)
    assert counters.encode_seconds > 0
    assert counters.queue_seconds > 0


def test_open_batcher_small_model_uses_one_worker_per_thread(packages: Packages) -> None:
    session = Session(packages("bert", "fp32").package, threads=3)
    engine = open_batcher(session, token_budget=64, pixel_budget=1)
    assert isinstance(engine, WorkerPool)
    assert (session.threads_per_run, len(engine.workers)) == (1, 3)
    rng = np.random.default_rng(4)
    inputs = [random_text(rng, engine) for _ in range(60)]
    expected = [run_unbatched(session, arrays) for arrays in inputs]
    engine.start()
    jobs = [ForwardJob(arrays) for arrays in inputs]
    for job in jobs:
        engine.submit(job)
    assert_same_outputs(wait_for(jobs), expected)
    engine.close()
    assert engine.counters.accepted == engine.counters.finished == engine.counters.slot_steps == 60


@pytest.mark.slow
def test_session_decoder_model_runs_with_all_threads(packages: Packages) -> None:
    assert Session(packages("marian", "int8").package, threads=3).threads_per_run == 3


def test_batcher_concurrent_submits_return_own_results(batcher: Batcher) -> None:
    inputs = [[random_text(np.random.default_rng([thread, n]), batcher) for n in range(25)] for thread in range(6)]
    jobs: list[list[ForwardJob]] = [[] for _ in inputs]

    def send(thread: int) -> None:
        for arrays in inputs[thread]:
            job = ForwardJob(arrays)
            batcher.submit(job)
            jobs[thread].append(job)
            if len(jobs[thread]) % 5 == 0:
                job.future.result(60)

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    for thread_jobs, thread_inputs in zip(jobs, inputs, strict=True):
        results = wait_for(thread_jobs)
        assert_same_outputs(results, [run_unbatched(batcher.session, arrays) for arrays in thread_inputs])
        assert all(result.queue_seconds >= 0 and result.run_seconds > 0 for result in results)
        assert [result.input_tokens for result in results] == [len(arrays["tokens"]) for arrays in thread_inputs]
    assert batcher.counters.accepted == batcher.counters.finished == 150


def test_batcher_text_at_max_length_is_not_padded(batcher: Batcher) -> None:
    max_length = batcher.session.package.manifest.limits["length"]
    assert max_length % 16
    arrays = random_text(np.random.default_rng(1), batcher, max_length)
    job = ForwardJob(arrays)
    batcher.submit(job)
    assert_same_outputs(wait_for([job]), [run_unbatched(batcher.session, arrays)])
    assert (batcher.counters.elements, batcher.counters.padding_elements) == (max_length, 0)


def test_batcher_cancelled_or_overdue_jobs_do_not_run(batcher: Batcher) -> None:
    first, cancelled, alive = text_jobs(batcher, 9, 9, 9)
    late = ForwardJob(alive.arrays, deadline=time.monotonic() - 1)
    cancelled.future.cancel()
    submit_together(batcher, [cancelled, late, alive], first)
    wait_for([first, alive])
    with pytest.raises(DeadlineError):
        late.future.result(60)
    batcher.close()
    counters = batcher.counters
    assert (counters.slot_steps, counters.finished, counters.cancelled) == (2, 2, 2)
    assert (counters.waiting, counters.slots_in_use) == (0, 0)


class CancelledWhenDequeued(ForwardJob):
    """Cancelled at its first `is_expired` check, which happens after it was dequeued."""

    def is_expired(self, now: float) -> bool:
        self.future.cancel()
        return super().is_expired(now)


def test_batcher_job_cancelled_after_dequeue_does_not_run(batcher: Batcher) -> None:
    first, alive = text_jobs(batcher, 9, 9)
    cancelled = CancelledWhenDequeued(alive.arrays)
    submit_together(batcher, [cancelled, alive], first)
    wait_for([first, alive])
    batcher.close()
    assert (batcher.counters.slot_steps, batcher.counters.finished, batcher.counters.cancelled) == (2, 2, 1)


def test_batcher_job_cancelled_during_run_counts_as_cancelled(batcher: Batcher) -> None:
    first, cancelled, alive = text_jobs(batcher, 60, 9, 9)
    batcher.session.during_run = cancelled.future.cancel  # type: ignore[attr-defined]
    batcher.submit(cancelled)
    with pytest.raises(CancelledError):
        cancelled.future.result(60)
    submit_together(batcher, [alive], first)
    wait_for([first, alive])
    batcher.close()
    assert (batcher.counters.finished, batcher.counters.cancelled, batcher.counters.failed) == (2, 1, 0)


def test_batcher_failed_run_fails_only_the_input_that_causes_it(batcher: Batcher) -> None:
    """A token id beyond the vocabulary makes ONNX Runtime fail."""
    first, long, bad, companion = text_jobs(batcher, 60, 60, 9, 9)
    bad.arrays["tokens"][4] = 10**6
    submit_together(batcher, [long, bad, companion], first)
    expected = long.future.result(60).outputs["scores"]
    with pytest.raises(Exception, match="indices element out of data bounds"):
        bad.future.result(60)
    for job, outputs in ((long, expected), (companion, companion.future.result(60).outputs["scores"])):
        repeated = ForwardJob(job.arrays)
        batcher.submit(repeated)
        np.testing.assert_array_equal(repeated.future.result(60).outputs["scores"], outputs)
    batcher.close()
    assert (batcher.counters.finished, batcher.counters.failed) == (5, 1)
    assert batcher.counters.slots_in_use == 0


def test_submit_unexpected_arrays_raises_value_error(batcher: Batcher) -> None:
    with pytest.raises(ValueError, match=r"takes \['segments', 'tokens'\]"):
        batcher.submit(ForwardJob({"pixels": np.zeros((3, 4, 4), np.float32)}))


@pytest.mark.parametrize("drain", [True, False])
def test_close_queued_jobs_finish_or_fail(batcher: Batcher, drain: bool) -> None:
    first, *others = text_jobs(batcher, 60, 9, 9)
    with while_busy(batcher, first), ThreadPoolExecutor(1) as pool:
        for job in others:
            batcher.submit(job)
        closing = pool.submit(batcher.close, drain=drain)
        deadline = time.monotonic() + 60
        while not is_closing(batcher, first):
            assert time.monotonic() < deadline
        batcher.session.released.set()  # type: ignore[attr-defined]
        closing.result(60)
    assert first.future.result(60).outputs
    for job in others:
        assert (job.future.exception(60) is None) if drain else isinstance(job.future.exception(60), ClosedError)


def is_closing(batcher: Batcher, template: ForwardJob) -> bool:
    job = ForwardJob(template.arrays)
    job.future.cancel()
    try:
        batcher.submit(job)
    except ClosedError:
        return True
    return False


def test_batcher_many_jobs_memory_is_constant(batcher: Batcher) -> None:
    rng = np.random.default_rng(1)

    def run_jobs(count: int) -> None:
        for _ in range(count // 50):
            jobs = [ForwardJob(random_text(rng, batcher)) for _ in range(50)]
            for job in jobs:
                batcher.submit(job)
            wait_for(jobs)

    run_jobs(500)
    gc.collect()
    objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_jobs(2000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 << 10  # KiB
    assert batcher.counters.waiting == 0


def text_jobs(batcher: Batcher, *lengths: int) -> list[ForwardJob]:
    rng = np.random.default_rng(1)
    return [ForwardJob(random_text(rng, batcher, length)) for length in lengths]
