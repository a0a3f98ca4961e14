"""The decoding engine beside transformers' `generate`, and beside itself under random load."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.engine.decoder import Decoder
from service.engine.jobs import ClosedError, DeadlineError, QueueFullError
from service.engine.lanes import Lanes
from service.engine.sampling import Sampling
from service.engine.scheduler import Scheduler
from service.engine.sequence import Choosing, Decoded, DecodeJob
from service.engine.session import Session
from service.engine.worker import Engine
from service.package import Package
from tests.conftest import Packages

NEW_TOKENS = 20
HEADS = {
    "marian": "MarianMTModel",
    "bart": "BartForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "gpt2": "GPT2LMHeadModel",
}
WAYS_OF_TRANSFORMERS: list[dict[str, Any]] = [
    {"beams": 1},
    {"beams": 1, "repetition_penalty": 1.4},
    {"beams": 1, "no_repeat_ngram_size": 2},
    {"beams": 2, "length_penalty": 0.0, "early_stopping": False},
    {"beams": 2, "length_penalty": 2.0, "early_stopping": True},
    {"beams": 4, "length_penalty": 1.0, "early_stopping": False},
    {"beams": 4, "length_penalty": 1.0, "early_stopping": True, "repetition_penalty": 1.4},
    {"beams": 4, "length_penalty": 2.0, "early_stopping": False, "no_repeat_ngram_size": 2},
    {"beams": 8, "length_penalty": 0.0, "early_stopping": True},
    {"beams": 8, "length_penalty": 2.0, "early_stopping": False},
]


@contextmanager
def engine(package: Package, rows: int = 16, max_waiting: int = 4096, lanes: int = 1) -> Iterator[Engine[DecodeJob]]:
    """`rows` of each lane."""
    room = min(package.manifest.limits["room"], 61)
    session = Session(package, threads=1)
    decoder: Engine[DecodeJob] = Decoder(session, rows=rows, room=room, max_waiting=max_waiting)
    if lanes > 1:
        decoder = Lanes(session, lanes * [partial(Decoder, session, rows=rows, room=room)])
    decoder.start()
    try:
        yield decoder
    finally:
        decoder.close(drain=False)


def plain(package: Package, **settings: object) -> Choosing:
    decoding = package.manifest.decoding
    assert decoding is not None
    defaults = Choosing(
        max_new_tokens=NEW_TOKENS,
        stop=frozenset(decoding.stop),
        never=decoding.never,
        forced_first=decoding.forced_first,
        forced_last=decoding.forced_last,
    )
    return replace(defaults, **settings)  # type: ignore[arg-type]


def job(package: Package, tokens: list[int], choosing: Choosing, **more: object) -> DecodeJob:
    decoding = package.manifest.decoding
    assert decoding is not None
    if package.manifest.task == "generation":
        return DecodeJob({}, 0, tuple(tokens), choosing, **more)  # type: ignore[arg-type]
    return DecodeJob({"tokens": np.array(tokens)}, len(tokens), decoding.start, choosing, **more)  # type: ignore[arg-type]


def sources(package: Package, count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    vocabulary = next(
        int(port.shape[1]) for port in package.manifest.graphs["decoder"].outputs if port.name == "logits"
    )
    return [rng.integers(3, vocabulary - 1, rng.integers(2, 14)).tolist() for _ in range(count)]


def run(decoder: Engine[DecodeJob], jobs: list[DecodeJob]) -> list[Decoded]:
    for each in jobs:
        decoder.submit(each)
    return [each.future.result(60) for each in jobs]


@pytest.mark.parametrize("kind", HEADS)
def test_hypotheses_are_those_of_transformers(kind: str, packages: Packages) -> None:
    exported = packages(kind, "fp32")
    package = exported.package
    model = getattr(transformers, HEADS[kind]).from_pretrained(exported.checkpoint).eval()
    ways = WAYS_OF_TRANSFORMERS
    texts = sources(package, 2)
    with engine(package, rows=24) as decoder:
        jobs = [job(package, tokens, plain(package, best=min(2, w["beams"]), **w)) for w in ways for tokens in texts]
        answers = run(decoder, jobs)
    for answer, (way, tokens) in zip(answers, itertools.product(ways, texts), strict=True):
        expected = _generate(model, kind, tokens, way)
        found = [(list(one.tokens), pytest.approx(one.score, abs=1e-4)) for one in answer.hypotheses]
        if way["beams"] == 1:
            assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected], way
        else:
            assert found == expected, way


def _generate(
    model: torch.nn.Module, kind: str, tokens: list[int], way: dict[str, object]
) -> list[tuple[list[int], float]]:
    options = dict(way)
    beams = options.pop("beams")
    with torch.no_grad():
        out = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            num_beams=beams,
            num_return_sequences=min(2, beams),  # type: ignore[call-overload]
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            use_cache=kind != "t5",  # its cache takes a decoder of fewer layers than the encoder for one of as many
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    stop = set(np.atleast_1d(model.generation_config.eos_token_id).tolist())
    start = len(tokens) if kind == "gpt2" else 1
    scores = out.sequences_scores.tolist() if beams > 1 else [0.0]  # type: ignore[operator]
    return [(_until(row[start:].tolist(), stop), score) for row, score in zip(out.sequences, scores, strict=True)]


def _until(tokens: list[int], stop: set[int]) -> list[int]:
    return list(itertools.takewhile(lambda token: token not in stop, tokens))


WAYS: list[dict[str, object]] = [
    {},
    {"beams": 2},
    {"beams": 3, "early_stopping": True},
    {"sampling": Sampling(top_k=5), "seed": (7, 0)},
    {"sampling": Sampling(temperature=1.5, top_p=0.8), "seed": (8, 0)},
    {"repetition_penalty": 1.3},
]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_comes_and_goes_answers_are_those_of_a_request_alone(data: st.DataObject, packages: Packages) -> None:
    """Random arrivals, lengths, ways of choosing, cancellations: each ends exactly once, no row stays taken."""
    package = packages("marian", "int8").package
    texts = sources(package, 6)
    plan = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, len(texts) - 1),
                st.integers(0, len(WAYS) - 1),
                st.integers(1, NEW_TOKENS),
                st.sampled_from([None, None, None, 0, 1, 5]),  # cancelled after so many tokens
            ),
            min_size=1,
            max_size=25,
        )
    )
    lanes = data.draw(st.integers(1, 3))
    with engine(package, rows=data.draw(st.integers(3, 9)), lanes=lanes) as decoder:
        jobs = []
        for text, way, longest, cancelled_after in plan:
            choosing = plain(package, **WAYS[way], max_new_tokens=longest)
            jobs.append(job(package, texts[text], choosing))
            jobs[-1].listener = Canceller(jobs[-1], cancelled_after)
            decoder.submit(jobs[-1])
            if cancelled_after == 0:
                jobs[-1].future.cancel()
        ended = [answer_of(each) for each in jobs]
        for (text, way, longest, cancelled_after), outcome in zip(plan, ended, strict=True):
            if outcome is None:
                assert cancelled_after is not None
            else:
                assert outcome.hypotheses == _alone(package, texts[text], way, longest).hypotheses
        _settled(decoder, len(plan))
        meters = decoder.meters
        assert meters.finished + meters.cancelled == meters.accepted == len(plan)
        assert (meters.failed, meters.rows_in_use, meters.waiting, decoder.line.work) == (0, 0, 0, 0)


class Canceller:
    def __init__(self, job: DecodeJob, after: int | None) -> None:
        self.job, self.left = job, after

    def __call__(self, _token: int) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                self.job.future.cancel()


def answer_of(each: DecodeJob) -> Decoded | None:
    try:
        return each.future.result(60)
    except CancelledError:
        return None


_known: dict[tuple[int, int, int], Decoded] = {}


def _alone(package: Package, tokens: list[int], way: int, longest: int) -> Decoded:
    key = (hash(tuple(tokens)), way, longest)
    if key not in _known:
        with engine(package, rows=3) as decoder:
            _known[key] = run(decoder, [job(package, tokens, plain(package, **WAYS[way], max_new_tokens=longest))])[0]
    return _known[key]


def _settled(decoder: Engine[DecodeJob], ended: int, seconds: float = 10.0) -> None:
    """A request that is cancelled at once may not have reached the engine yet."""
    end = time.monotonic() + seconds
    while decoder.meters.finished + decoder.meters.cancelled < ended and time.monotonic() < end:
        threading.Event().wait(0.005)


@given(
    beams=st.lists(st.integers(1, 5), max_size=30),
    lengths=st.lists(st.integers(1, 300), min_size=30, max_size=30),
    free=st.integers(0, 12),
    running=st.integers(0, 12),
)
def test_the_first_in_line_is_never_overtaken(beams: list[int], lengths: list[int], free: int, running: int) -> None:
    choosing = Choosing(max_new_tokens=4, stop=frozenset())
    line = [DecodeJob({}, n, (1,), replace(choosing, beams=b)) for b, n in zip(beams, lengths, strict=False)]
    waiting = deque(line)
    chosen = Scheduler().choose(waiting, free, running)
    assert [*chosen, *waiting] == line
    assert sum(each.choosing.beams for each in chosen) <= free
    if line and line[0].choosing.beams <= free:
        assert chosen
    if not running and waiting:
        assert sum(each.choosing.beams for each in chosen) + waiting[0].choosing.beams > free


@pytest.mark.parametrize("how", [{"beams": 3}, {"sampling": Sampling(top_k=5)}, {}])
def test_tokens_that_never_come_do_not_take_the_place_of_others(how: dict[str, Any]) -> None:
    stop = frozenset({0})
    free = DecodeJob({}, 0, (1,), Choosing(9, stop, **how))
    barred = DecodeJob({}, 0, (1,), Choosing(9, stop, never=(3, 4), **how))
    assert barred.top == free.top + 2


def test_a_bad_token_fails_its_own_request_only(packages: Packages) -> None:
    package = packages("marian", "fp32").package
    good, other = sources(package, 2)
    with engine(package) as decoder:
        expected = run(decoder, [job(package, good, plain(package))])[0].hypotheses
        bad = job(package, [10**6], plain(package))
        decoder.submit(bad)
        assert bad.future.exception(30) is not None
        worse = DecodeJob({"tokens": np.array(other)}, len(other), (10**6,), plain(package))
        decoder.submit(worse)
        assert worse.future.exception(30) is not None
        assert run(decoder, [job(package, good, plain(package))])[0].hypotheses == expected
        assert decoder.meters.failed == 2
        assert not decoder.rows


def test_a_deadline_frees_the_rows(packages: Packages) -> None:
    package = packages("gpt2", "fp32").package
    (tokens,) = sources(package, 1)
    endless = plain(package, stop=frozenset(), max_new_tokens=40)
    with engine(package, rows=1) as decoder:
        deadline = time.monotonic() + 0.1
        late = job(package, tokens, endless, deadline=deadline, listener=lambda _: time.sleep(0.01))  # 0.4 s in all
        decoder.submit(late)
        with pytest.raises(DeadlineError):
            late.future.result(30)
        run(decoder, [job(package, tokens, plain(package))])
        assert decoder.meters.cancelled == 1


def test_a_full_queue_refuses_at_once(packages: Packages) -> None:
    package = packages("gpt2", "fp32").package
    (tokens,) = sources(package, 1)
    with engine(package, rows=1, max_waiting=3) as decoder:
        held = threading.Event()
        first = job(package, tokens, plain(package), listener=lambda _: held.wait(20))
        decoder.submit(first)
        while decoder.meters.rows_in_use == 0:
            threading.Event().wait(0.001)
        for _ in range(3):
            decoder.submit(job(package, tokens, plain(package)))
        with pytest.raises(QueueFullError):
            decoder.submit(job(package, tokens, plain(package)))
        held.set()
        first.future.result(30)


@pytest.mark.parametrize("drain", [True, False])
def test_closing_answers_everyone(drain: bool, packages: Packages) -> None:
    package = packages("marian", "fp32").package
    decoder = Decoder(Session(package, threads=1), rows=2, room=61)
    decoder.start()
    jobs = [job(package, tokens, plain(package)) for tokens in sources(package, 12)]
    for each in jobs:
        decoder.submit(each)
    decoder.close(drain=drain)
    assert all(each.future.done() for each in jobs)
    errors = [each.future.exception() for each in jobs]
    assert all(error is None for error in errors) if drain else any(isinstance(e, ClosedError) for e in errors)
    with pytest.raises(ClosedError):
        decoder.submit(jobs[0])


@pytest.mark.slow
def test_memory_stays_flat(packages: Packages) -> None:
    package = packages("marian", "int8").package
    texts = sources(package, 50)
    with engine(package, rows=32, max_waiting=20_000) as decoder:
        sizes = []
        for _ in range(5):
            run(decoder, [job(package, texts[index % 50], plain(package, max_new_tokens=4)) for index in range(2_000)])
            gc.collect()
            sizes.append(_resident())
        assert decoder.meters.finished == 10_000
        assert sizes[-1] - sizes[0] < 8 << 20, sizes


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
