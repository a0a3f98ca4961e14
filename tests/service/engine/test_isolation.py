"""A sequence, input or episode that makes a graph fail does not fail those that share its batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from headwaiter import open_model
from headwaiter.engine.batcher import Batcher, ForwardJob
from headwaiter.engine.isolation import isolate_failures
from headwaiter.engine.sequence import DecodeJob
from headwaiter.engine.session import Session
from headwaiter.package.manifest import Package
from tests.conftest import Packages
from tests.service.engine.decoder_kit import decode_job, decoding_parameters, random_texts, run_jobs, running_decoder

_UNKNOWN_TOKEN = 10**6  # outside of every embedding table: the graph fails


@pytest.mark.parametrize("poisoned", [set(), {0}, {6}, {2, 3}, set(range(7))])
def test_isolate_failures_returns_exactly_the_failing_items(poisoned: set[int]) -> None:
    completed: set[int] = set()

    def run(items: Sequence[int]) -> None:
        if poisoned & set(items):
            raise RuntimeError
        completed.update(items)

    assert {item for item, _ in isolate_failures(range(7), run)} == poisoned
    assert completed == set(range(7)) - poisoned


def _poisoned_step(package: Package, text: list[int], num_beams: int) -> DecodeJob:
    return decode_job(package, [*text, _UNKNOWN_TOKEN], decoding_parameters(package, num_beams=num_beams))


def _poisoned_prefill(package: Package, text: list[int], num_beams: int) -> DecodeJob:
    return decode_job(package, [_UNKNOWN_TOKEN, *text], decoding_parameters(package, num_beams=num_beams))


@pytest.mark.parametrize(
    ("kind", "poison"),
    [("gpt2", _poisoned_step), ("gpt2", _poisoned_prefill), ("marian", _poisoned_prefill)],
    ids=["step", "prefill", "encoder"],
)
@pytest.mark.parametrize("num_beams", [1, 3])
def test_decoder_failing_sequence_fails_alone(
    packages: Packages, kind: str, poison: Callable[[Package, list[int], int], DecodeJob], num_beams: int
) -> None:
    package = packages(kind, "fp32").package
    texts = random_texts(package, 9)
    params = decoding_parameters(package, num_beams=num_beams)
    with running_decoder(package) as decoder:
        expected = [run_jobs(decoder, [decode_job(package, text, params)])[0].hypotheses for text in texts]
    with running_decoder(package) as decoder:
        jobs = [decode_job(package, text, params) for text in texts]
        poisoned = [poison(package, texts[0], num_beams) for _ in range(2)]
        for job in [*jobs[:2], poisoned[0], *jobs[2:6], poisoned[1], *jobs[6:]]:
            decoder.submit(job)
        assert [job.future.result(60).hypotheses for job in jobs] == expected
        assert all(job.future.exception(60) is not None for job in poisoned)
        assert decoder.counters.failed == 2
        assert run_jobs(decoder, [decode_job(package, texts[0], params)])[0].hypotheses == expected[0]


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("room", [1, 2, 5])
def test_decoder_prompt_near_cache_end_stops_at_the_end(packages: Packages, num_beams: int, room: int) -> None:
    package = packages("gpt2", "fp32").package
    params = decoding_parameters(package, num_beams=num_beams, eos_token_ids=frozenset(), max_new_tokens=50)
    (text,) = random_texts(package, 1)
    with running_decoder(package) as decoder:
        max_length = min(package.manifest.limits["max_length"], 61)
        prompt = (text * max_length)[: max_length - room + 1]
        (result,) = run_jobs(decoder, [decode_job(package, prompt, params)])
        assert [len(hypothesis.tokens) for hypothesis in result.hypotheses] == [room] * len(result.hypotheses)
        assert {hypothesis.finish_reason for hypothesis in result.hypotheses} == {"length"}
        with pytest.raises(ValueError, match="more than the cache has"):
            decoder.submit(decode_job(package, (text * max_length)[: max_length + 1], params))


def test_batcher_failing_input_fails_alone(packages: Packages) -> None:
    package = packages("bert", "fp32").package
    batcher = Batcher(Session(package, threads=1), token_budget=4096)
    segments = np.zeros(8, np.int64)
    good = [ForwardJob({"tokens": np.full(8, token), "segments": segments}) for token in range(3, 10)]
    poisoned = ForwardJob({"tokens": np.full(8, _UNKNOWN_TOKEN), "segments": segments})
    for job in [*good[:3], poisoned, *good[3:]]:
        batcher.submit(job)
    batcher.start()
    results = [job.future.result(60).outputs["scores"] for job in good]
    assert poisoned.future.exception(60) is not None
    alone = ForwardJob({"tokens": np.full(8, 3), "segments": segments})
    batcher.submit(alone)
    np.testing.assert_allclose(results[0], alone.future.result(60).outputs["scores"], atol=1e-5)
    assert batcher.counters.failed == 1
    batcher.close()


def test_episodes_failing_episode_fails_alone(packages: Packages) -> None:
    folder: Path = packages("decision_transformer", "fp32").package.folder
    with open_model(folder, "policy", threads=1, max_sequences=4) as model:
        states = np.random.default_rng(0).normal(size=(4, model.task.policy.state_size)).tolist()

        def play(poisoned: bool) -> list[object]:
            episodes = [model.episode(1.0) for _ in range(4)]
            for episode, state in zip(episodes, states, strict=True):
                episode.step(state)
            if poisoned:
                episodes[1]._episode_state.timestep = _UNKNOWN_TOKEN
            futures = [episode.submit(state, 0.5) for episode, state in zip(episodes, states, strict=True)]
            results = [
                None if poisoned and index == 1 else episode.answer(future.result(60))
                for index, (episode, future) in enumerate(zip(episodes, futures, strict=True))
            ]
            if poisoned:
                assert futures[1].exception(60) is not None
            for index, episode in enumerate(episodes):
                if not (poisoned and index == 1):
                    episode.close()
            return [None if result is None else result.continuous or result.discrete for result in results]

        expected, actual = play(poisoned=False), play(poisoned=True)
        for index in (0, 2, 3):
            np.testing.assert_allclose(actual[index], expected[index], atol=1e-5)  # type: ignore[arg-type]
