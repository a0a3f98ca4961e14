"""Batches are formed within the budget, oldest first, and nobody's answer depends on the company."""

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

from service.engine.batcher import (
    GRAPH,
    MOST_PADDING,
    Batcher,
    Extent,
    PassAnswer,
    PassJob,
    form_batch,
    open_batcher,
)
from service.engine.jobs import ClosedError, DeadlineError, QueueFullError
from service.engine.lanes import Lanes
from service.engine.session import Arrays, Session
from service.engine.worker import Engine
from service.package import Package, Precision, padded_length
from tests.conftest import Packages

TEXTS: list[tuple[str, Precision]] = [("bert", "fp32"), ("bert", "int8"), ("distilbert", "fp32")]
IMAGES: list[tuple[str, Precision]] = [("vit", "fp32"), ("vit", "int8"), ("detr", "fp32")]

widths = st.integers(1, 40).map(lambda n: Extent((), 16 * n))
sizes = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(lambda size: Extent(size, size[0] * size[1]))
queues = st.one_of(st.lists(widths, min_size=1, max_size=60), st.lists(sizes, min_size=1, max_size=60))


@given(queue=queues, budget=st.integers(1, 3000))
def test_a_batch_keeps_the_budget_and_has_the_oldest(queue: list[Extent], budget: int) -> None:
    chosen = form_batch(queue, budget)
    members = [queue[index] for index in chosen]
    assert chosen[0] == 0
    assert chosen == sorted(set(chosen))
    assert {member.kind for member in members} == {queue[0].kind}
    places = len(members) * max(member.places for member in members)
    assert places <= budget or len(members) == 1
    assert places <= MOST_PADDING * sum(member.places for member in members)


@given(queue=queues, budget=st.integers(1, 3000))
def test_every_job_is_in_exactly_one_batch(queue: list[Extent], budget: int) -> None:
    waiting, ran = list(range(len(queue))), []
    turns = 0
    while waiting:
        chosen = [waiting[index] for index in form_batch([queue[each] for each in waiting], budget)]
        ran += chosen
        waiting = [each for each in waiting if each not in chosen]
        turns += 1
        assert all(each in ran for each in range(turns))  # nobody is overtaken by more batches than were before him
    assert sorted(ran) == list(range(len(queue)))


@given(queue=st.lists(widths, min_size=1, max_size=40))
def test_equals_go_together_in_order(queue: list[Extent]) -> None:
    alike = [index for index, extent in enumerate(queue) if extent == queue[0]]
    room = 3 * queue[0].places
    assert form_batch(queue, room)[:3] == alike[:3] or len(alike) < 3


class Held(Session):
    """A session that can be made to wait in the middle of a call."""

    def __init__(self, package: Package) -> None:
        super().__init__(package, threads=1)
        self.begun, self.released = threading.Event(), threading.Event()
        self.released.set()
        self.meanwhile: Callable[[], object] = lambda: None

    def run(self, graph: str, feeds: Mapping[str, np.ndarray]) -> Arrays:
        self.begun.set()
        self.released.wait(60)
        self.meanwhile()
        return super().run(graph, feeds)


def opened(packages: Packages, kind: str, precision: Precision = "fp32", **options: Any) -> Batcher:
    batcher = Batcher(Held(packages(kind, precision).package), **options)
    batcher.start()
    return batcher


@pytest.fixture
def batcher(packages: Packages) -> Iterator[Batcher]:
    batcher = opened(packages, "bert")
    yield batcher
    if batcher.is_alive:
        batcher.close()


@contextmanager
def while_busy(batcher: Batcher, first: PassJob) -> Iterator[None]:
    """What is submitted inside waits until the first job, which runs alone, is let go."""
    session = batcher.session
    assert isinstance(session, Held)
    session.released.clear()
    batcher.submit(first)
    assert session.begun.wait(60)
    yield
    session.released.set()


def submit_together(batcher: Batcher, jobs: Sequence[PassJob], first: PassJob) -> None:
    with while_busy(batcher, first):
        for job in jobs:
            batcher.submit(job)


def some_text(rng: np.random.Generator, batcher: Engine[PassJob], length: int | None = None) -> Arrays:
    longest = batcher.session.package.manifest.limits["length"]
    length = length or int(rng.integers(1, longest + 1))
    arrays = {"tokens": rng.integers(5, 90, length), "segments": (np.arange(length) > length // 2).astype(np.int64)}
    taken = {port.name for port in batcher.session.package.manifest.graphs[GRAPH].inputs}
    return {name: value for name, value in arrays.items() if name in taken}


def some_image(rng: np.random.Generator, batcher: Batcher) -> Arrays:
    limits = batcher.session.package.manifest.limits
    height, width = limits.get("height", int(rng.choice([48, 64]))), limits.get("width", int(rng.choice([48, 80])))
    return {"pixels": rng.standard_normal((3, height, width)).astype(np.float32)}


def wait(jobs: Sequence[PassJob]) -> list[PassAnswer]:
    return [job.future.result(60) for job in jobs]


def assert_same_outputs(answers: Sequence[PassAnswer], expected: Sequence[Arrays]) -> None:
    for answer, alone in zip(answers, expected, strict=True):
        assert answer.outputs.keys() == alone.keys()
        for name, value in alone.items():
            assert np.array_equal(answer.outputs[name], value), name


def alone(session: Session, arrays: Arrays) -> Arrays:
    """The same input straight through the session, padded for itself alone."""
    feeds = {name: value[None] for name, value in arrays.items()}
    if "tokens" in arrays:
        length = len(arrays["tokens"])
        missing = min(padded_length(length), session.package.manifest.limits["length"]) - length
        feeds = {name: np.pad(value, ((0, 0), (0, missing))) for name, value in feeds.items()}
        feeds["lengths"] = np.array([length], np.int32)
    return {name: value[0] for name, value in session.run(GRAPH, feeds).items()}


@pytest.mark.parametrize(
    ("kind", "precision", "make"),
    [(*each, some_text) for each in TEXTS] + [(*each, some_image) for each in IMAGES],
    ids=["-".join(each) for each in TEXTS + IMAGES],
)
def test_together_as_alone(
    packages: Packages,
    kind: str,
    precision: Precision,
    make: Callable[[np.random.Generator, Batcher], Arrays],
) -> None:
    batcher = opened(packages, kind, precision, pixel_budget=6 * 64 * 80)
    rng = np.random.default_rng(3)
    inputs = [make(rng, batcher) for _ in range(40)]
    expected = [alone(batcher.session, each) for each in inputs]
    first, *others = jobs = [PassJob(each) for each in inputs]
    submit_together(batcher, others, first)
    assert_same_outputs(wait(jobs), expected)
    batcher.close()
    meters = batcher.meters
    assert meters.accepted == meters.finished == meters.row_steps == 40
    assert meters.steps < 25
    assert meters.places > meters.padding >= 0
    assert meters.input_tokens == sum(len(each.get("tokens", ())) for each in inputs)
    assert meters.encode_seconds > 0
    assert meters.queue_seconds > 0


def test_passes_of_a_small_model_run_side_by_side(packages: Packages) -> None:
    session = Session(packages("bert", "fp32").package, threads=3)
    engine = open_batcher(session, token_budget=64, pixel_budget=1)
    assert isinstance(engine, Lanes)
    assert (session.threads_of_a_pass, len(engine.lanes)) == (1, 3)
    rng = np.random.default_rng(4)
    inputs = [some_text(rng, engine) for _ in range(60)]
    expected = [alone(session, each) for each in inputs]
    engine.start()
    jobs = [PassJob(each) for each in inputs]
    for job in jobs:
        engine.submit(job)
    assert_same_outputs(wait(jobs), expected)
    engine.close()
    assert engine.meters.accepted == engine.meters.finished == engine.meters.row_steps == 60


def test_a_model_that_decodes_has_all_threads_in_a_pass(packages: Packages) -> None:
    assert Session(packages("marian", "int8").package, threads=3).threads_of_a_pass == 3


def test_arrivals_from_many_threads(batcher: Batcher) -> None:
    inputs = [[some_text(np.random.default_rng([thread, n]), batcher) for n in range(25)] for thread in range(6)]
    jobs: list[list[PassJob]] = [[] for _ in inputs]

    def send(thread: int) -> None:
        for arrays in inputs[thread]:
            job = PassJob(arrays)
            batcher.submit(job)
            jobs[thread].append(job)
            if len(jobs[thread]) % 5 == 0:
                job.future.result(60)

    threads = [threading.Thread(target=send, args=(thread,)) for thread in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sent, asked in zip(jobs, inputs, strict=True):
        answers = wait(sent)
        assert_same_outputs(answers, [alone(batcher.session, arrays) for arrays in asked])
        assert all(answer.queue_seconds >= 0 and answer.run_seconds > 0 for answer in answers)
        assert [answer.input_tokens for answer in answers] == [len(arrays["tokens"]) for arrays in asked]
    assert batcher.meters.accepted == batcher.meters.finished == 150


def test_text_at_the_limit_is_not_padded_beyond_it(batcher: Batcher) -> None:
    longest = batcher.session.package.manifest.limits["length"]
    assert longest % 16
    arrays = some_text(np.random.default_rng(1), batcher, longest)
    job = PassJob(arrays)
    batcher.submit(job)
    assert_same_outputs(wait([job]), [alone(batcher.session, arrays)])
    assert (batcher.meters.places, batcher.meters.padding) == (longest, 0)


def test_dead_jobs_never_run(batcher: Batcher) -> None:
    first, cancelled, living = some_jobs(batcher, 9, 9, 9)
    late = PassJob(living.arrays, deadline=time.monotonic() - 1)
    cancelled.future.cancel()
    submit_together(batcher, [cancelled, late, living], first)
    wait([first, living])
    with pytest.raises(DeadlineError):
        late.future.result(60)
    batcher.close()
    meters = batcher.meters
    assert (meters.row_steps, meters.finished, meters.cancelled) == (2, 2, 2)
    assert (meters.waiting, meters.rows_in_use) == (0, 0)


class CancelledWhenChosen(PassJob):
    """The line has no reason to look at it; whoever chose it does."""

    def is_dead(self, now: float) -> bool:
        self.future.cancel()
        return super().is_dead(now)


def test_jobs_that_die_between_choosing_and_running(batcher: Batcher) -> None:
    first, living = some_jobs(batcher, 9, 9)
    dying = CancelledWhenChosen(living.arrays)
    submit_together(batcher, [dying, living], first)
    wait([first, living])
    batcher.close()
    assert (batcher.meters.row_steps, batcher.meters.finished, batcher.meters.cancelled) == (2, 2, 1)


def test_a_job_cancelled_while_it_runs_counts_as_cancelled(batcher: Batcher) -> None:
    first, dying, living = some_jobs(batcher, 60, 9, 9)
    batcher.session.meanwhile = dying.future.cancel  # type: ignore[attr-defined]
    batcher.submit(dying)
    with pytest.raises(CancelledError):
        dying.future.result(60)
    submit_together(batcher, [living], first)
    wait([first, living])
    batcher.close()
    assert (batcher.meters.finished, batcher.meters.cancelled, batcher.meters.failed) == (2, 1, 0)


def test_the_runtime_failing_fails_its_batch_alone(batcher: Batcher) -> None:
    """A token beyond the vocabulary makes the runtime itself fail."""
    first, long, bad, companion = some_jobs(batcher, 60, 60, 9, 9)
    bad.arrays["tokens"][4] = 10**6
    submit_together(batcher, [long, bad, companion], first)
    expected = long.future.result(60).outputs["scores"]
    for job in (bad, companion):
        with pytest.raises(Exception, match="indices element out of data bounds"):
            job.future.result(60)
    again = PassJob(long.arrays)
    batcher.submit(again)
    assert np.array_equal(again.future.result(60).outputs["scores"], expected)
    batcher.close()
    assert (batcher.meters.finished, batcher.meters.failed, batcher.meters.steps) == (3, 2, 3)
    assert batcher.meters.rows_in_use == 0


def test_arrays_of_another_model_are_refused_at_once(batcher: Batcher) -> None:
    with pytest.raises(ValueError, match=r"takes \['segments', 'tokens'\]"):
        batcher.submit(PassJob({"pixels": np.zeros((3, 4, 4), np.float32)}))


@pytest.mark.parametrize("drain", [True, False])
def test_closing_answers_or_lets_go(batcher: Batcher, drain: bool) -> None:
    first, *others = some_jobs(batcher, 60, 9, 9)
    with while_busy(batcher, first), ThreadPoolExecutor(1) as pool:
        for job in others:
            batcher.submit(job)
        closing = pool.submit(batcher.close, drain=drain)
        while not is_closing(batcher, first):
            pass
        batcher.session.released.set()  # type: ignore[attr-defined]
        closing.result(60)
    assert first.future.result(60).outputs
    for job in others:
        assert (job.future.exception(60) is None) if drain else isinstance(job.future.exception(60), ClosedError)


def is_closing(batcher: Batcher, like: PassJob) -> bool:
    job = PassJob(like.arrays)
    job.future.cancel()
    try:
        batcher.submit(job)
    except ClosedError:
        return True
    except QueueFullError:
        return False
    return False


def test_memory_stays_flat(batcher: Batcher) -> None:
    rng = np.random.default_rng(1)

    def ask(count: int) -> None:
        for _ in range(count // 50):
            jobs = [PassJob(some_text(rng, batcher)) for _ in range(50)]
            for job in jobs:
                batcher.submit(job)
            wait(jobs)

    ask(500)
    gc.collect()
    objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ask(2000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 500
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 << 10  # in KiB
    assert batcher.meters.waiting == 0


def some_jobs(batcher: Batcher, *lengths: int) -> list[PassJob]:
    rng = np.random.default_rng(1)
    return [PassJob(some_text(rng, batcher, length)) for length in lengths]
