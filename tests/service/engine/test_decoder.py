"""The decoding engine compared with transformers' `generate`, and with unbatched decoding under random load."""

from __future__ import annotations

import gc
import itertools
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwaiter.engine.decoder import Decoder
from headwaiter.engine.jobs import ClosedError, DeadlineError
from headwaiter.engine.sampling import Sampling
from headwaiter.engine.scheduler import Scheduler
from headwaiter.engine.sequence import DecodeJob, DecodingParameters, DecodingResult
from headwaiter.engine.session import Session
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Package
from tests.conftest import Packages
from tests.marks_kit import slow_except
from tests.service.engine.decoder_kit import (
    MAX_NEW_TOKENS,
    PARAMETER_SETS,
    Canceller,
    decode_job,
    decoding_parameters,
    random_texts,
    result_or_none,
    run_jobs,
    running_decoder,
)

MODEL_CLASSES = {
    "marian": "MarianMTModel",
    "bart": "BartForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "gpt2": "GPT2LMHeadModel",
}
GENERATE_OPTIONS: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 1, "repetition_penalty": 1.4},
    {"num_beams": 1, "no_repeat_ngram_size": 2},
    {"num_beams": 2, "length_penalty": 0.0, "early_stopping": False},
    {"num_beams": 2, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False},
    {"num_beams": 4, "length_penalty": 1.0, "early_stopping": True, "repetition_penalty": 1.4},
    {"num_beams": 4, "length_penalty": 2.0, "early_stopping": False, "no_repeat_ngram_size": 2},
    {"num_beams": 8, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 8, "length_penalty": 2.0, "early_stopping": False},
]


@pytest.mark.parametrize("kind", slow_except(MODEL_CLASSES, "marian", "gpt2"))
def test_decoder_all_options_match_transformers(kind: str, packages: Packages) -> None:
    exported = packages(kind, "fp32")
    package = exported.package
    model = getattr(transformers, MODEL_CLASSES[kind]).from_pretrained(exported.checkpoint).eval()
    cases = list(itertools.product(GENERATE_OPTIONS, random_texts(package, 2)))
    with running_decoder(package, slots=24) as decoder:
        jobs = [
            decode_job(
                package,
                tokens,
                decoding_parameters(package, num_return_sequences=min(2, options["num_beams"]), **options),
            )
            for options, tokens in cases
        ]
        results = run_jobs(decoder, jobs)
    for result, (options, tokens) in zip(results, cases, strict=True):
        expected = _generate(model, kind, tokens, options)
        actual = [
            (list(hypothesis.tokens), pytest.approx(hypothesis.score, abs=1e-4)) for hypothesis in result.hypotheses
        ]
        if options["num_beams"] == 1:
            assert [tokens for tokens, _ in actual] == [tokens for tokens, _ in expected], options
        else:
            assert actual == expected, options


def _generate(
    model: torch.nn.Module, kind: str, tokens: list[int], options: dict[str, object]
) -> list[tuple[list[int], float]]:
    options = dict(options)
    num_beams = options.pop("num_beams")
    with torch.no_grad():
        out = model.generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            num_beams=num_beams,
            num_return_sequences=min(2, num_beams),  # type: ignore[call-overload]
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            use_cache=kind != "t5",  # its cache assumes that the decoder has as many layers as the encoder
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
    eos_token_ids = set(np.atleast_1d(model.generation_config.eos_token_id).tolist())
    start = len(tokens) if kind == "gpt2" else 1
    scores = out.sequences_scores.tolist() if num_beams > 1 else [0.0]  # type: ignore[operator]
    return [
        (_until_eos(sequence[start:].tolist(), eos_token_ids), score)
        for sequence, score in zip(out.sequences, scores, strict=True)
    ]


def _until_eos(tokens: list[int], eos_token_ids: set[int]) -> list[int]:
    return list(itertools.takewhile(lambda token: token not in eos_token_ids, tokens))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_decoder_random_load_equals_unbatched_decoding(data: st.DataObject, packages: Packages) -> None:
    """Random arrivals, lengths, parameters and cancellations: every job ends exactly once and frees its slots."""
    package = packages("marian", "int8").package
    texts = random_texts(package, 6)
    plan = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, len(texts) - 1),
                st.integers(0, len(PARAMETER_SETS) - 1),
                st.integers(1, MAX_NEW_TOKENS),
                st.sampled_from([None, None, None, 0, 1, 5]),  # cancelled after this many tokens
            ),
            min_size=1,
            max_size=25,
        )
    )
    workers = data.draw(st.integers(1, 3))
    with running_decoder(package, slots=data.draw(st.integers(3, 9)), workers=workers) as decoder:
        jobs = []
        for text, parameter_set, max_new_tokens, cancel_after in plan:
            params = decoding_parameters(package, **PARAMETER_SETS[parameter_set], max_new_tokens=max_new_tokens)
            job = decode_job(package, texts[text], params)
            job.on_token = Canceller(job, cancel_after)
            jobs.append(job)
            decoder.submit(job)
            if cancel_after == 0:
                job.future.cancel()
        results = [result_or_none(job) for job in jobs]
        for (text, parameter_set, max_new_tokens, cancel_after), result in zip(plan, results, strict=True):
            if result is None:
                assert cancel_after is not None
            else:
                expected = _decode_unbatched(package, texts[text], parameter_set, max_new_tokens)
                assert result.hypotheses == expected.hypotheses
        _wait_until_ended(decoder, len(plan))
        counters = decoder.counters
        assert counters.finished + counters.cancelled == counters.accepted == len(plan)
        assert (counters.failed, counters.slots_in_use, counters.waiting, decoder.queue.work) == (0, 0, 0, 0)


_unbatched_results: dict[tuple[int, int, int], DecodingResult] = {}


def _decode_unbatched(package: Package, tokens: list[int], parameter_set: int, max_new_tokens: int) -> DecodingResult:
    key = (hash(tuple(tokens)), parameter_set, max_new_tokens)
    if key not in _unbatched_results:
        params = decoding_parameters(package, **PARAMETER_SETS[parameter_set], max_new_tokens=max_new_tokens)
        with running_decoder(package, slots=3) as decoder:
            _unbatched_results[key] = run_jobs(decoder, [decode_job(package, tokens, params)])[0]
    return _unbatched_results[key]


def _wait_until_ended(decoder: Engine[DecodeJob], count: int, timeout: float = 10.0) -> None:
    """Wait until the engine has counted jobs that were cancelled right after they were submitted."""
    end = time.monotonic() + timeout
    while decoder.counters.finished + decoder.counters.cancelled < count and time.monotonic() < end:
        time.sleep(0.005)


@given(
    num_beams=st.lists(st.integers(1, 5), max_size=30),
    lengths=st.lists(st.integers(1, 300), min_size=30, max_size=30),
    free_slots=st.integers(0, 12),
    running=st.integers(0, 12),
)
def test_scheduler_random_queue_selects_in_order(
    num_beams: list[int], lengths: list[int], free_slots: int, running: int
) -> None:
    params = DecodingParameters(max_new_tokens=4, eos_token_ids=frozenset())
    queue = [DecodeJob({}, n, (1,), replace(params, num_beams=b)) for b, n in zip(num_beams, lengths, strict=False)]
    indices = Scheduler().select(queue, free_slots, running)
    selected, waiting = queue[: len(indices)], queue[len(indices) :]
    assert indices == list(range(len(indices))), "no job overtakes another"
    assert sum(job.params.num_beams for job in selected) <= free_slots
    if queue and queue[0].params.num_beams <= free_slots:
        assert selected
    if not running and waiting:
        assert sum(job.params.num_beams for job in selected) + waiting[0].params.num_beams > free_slots


def test_scheduler_ineligible_jobs_are_skipped() -> None:
    params = DecodingParameters(max_new_tokens=4, eos_token_ids=frozenset())
    queue = [DecodeJob({}, length, (1,), params) for length in (1, 2, 3, 4, 5)]
    assert Scheduler().select(queue, 2, 3, lambda job: job.source_length % 2 == 0) == [1, 3]


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"sampling": Sampling(top_k=5)}, {}])
def test_decode_job_suppressed_tokens_increase_num_candidates(options: dict[str, Any]) -> None:
    eos_token_ids = frozenset({0})
    unrestricted = DecodeJob({}, 0, (1,), DecodingParameters(9, eos_token_ids, **options))
    suppressed = DecodeJob({}, 0, (1,), DecodingParameters(9, eos_token_ids, suppress_tokens=(3, 4), **options))
    assert suppressed.num_candidates == unrestricted.num_candidates + 2


def test_decoder_invalid_token_fails_only_its_job(packages: Packages) -> None:
    package = packages("marian", "fp32").package
    text, other = random_texts(package, 2)
    params = decoding_parameters(package)
    with running_decoder(package) as decoder:
        expected = run_jobs(decoder, [decode_job(package, text, params)])[0].hypotheses
        invalid_source = decode_job(package, [10**6], params)
        decoder.submit(invalid_source)
        assert invalid_source.future.exception(30) is not None
        invalid_prompt = DecodeJob({"tokens": np.array(other)}, len(other), (10**6,), params)
        decoder.submit(invalid_prompt)
        assert invalid_prompt.future.exception(30) is not None
        assert run_jobs(decoder, [decode_job(package, text, params)])[0].hypotheses == expected
        assert decoder.counters.failed == 2
        assert not decoder.sequences


def test_decoder_deadline_passed_frees_slots(packages: Packages) -> None:
    package = packages("gpt2", "fp32").package
    (text,) = random_texts(package, 1)
    endless = decoding_parameters(package, eos_token_ids=frozenset(), max_new_tokens=40)
    with running_decoder(package, slots=1) as decoder:
        deadline = time.monotonic() + 0.1
        late = decode_job(package, text, endless, deadline=deadline, on_token=lambda _: time.sleep(0.01))  # 0.4 s
        decoder.submit(late)
        with pytest.raises(DeadlineError):
            late.future.result(30)
        run_jobs(decoder, [decode_job(package, text, decoding_parameters(package))])
        assert decoder.counters.cancelled == 1


@pytest.mark.parametrize("drain", [True, False])
def test_close_queued_jobs_all_end(drain: bool, packages: Packages) -> None:
    package = packages("marian", "fp32").package
    decoder = Decoder(Session(package, threads=1), slots=2, max_length=61)
    decoder.start()
    jobs = [decode_job(package, text, decoding_parameters(package)) for text in random_texts(package, 12)]
    for job in jobs:
        decoder.submit(job)
    decoder.close(drain=drain)
    assert all(job.future.done() for job in jobs)
    errors = [job.future.exception(0) for job in jobs]
    assert all(error is None for error in errors) if drain else any(isinstance(e, ClosedError) for e in errors)
    with pytest.raises(ClosedError):
        decoder.submit(jobs[0])


@pytest.mark.slow
def test_decoder_many_jobs_memory_is_constant(packages: Packages) -> None:
    package = packages("marian", "int8").package
    texts = random_texts(package, 50)
    params = decoding_parameters(package, max_new_tokens=4)
    with running_decoder(package, slots=32) as decoder:
        sizes = []
        for _ in range(5):
            run_jobs(decoder, [decode_job(package, texts[index % 50], params) for index in range(2_000)])
            gc.collect()
            sizes.append(_resident_bytes())
        assert decoder.counters.finished == 10_000
        assert sizes[-1] - sizes[0] < 8 << 20, sizes


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")
