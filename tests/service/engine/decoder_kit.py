"""Helpers for tests of the decoding engine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from headwaiter.engine.decoder import Decoder
from headwaiter.engine.sampling import Sampling
from headwaiter.engine.sequence import DecodeJob, DecodingParameters, DecodingResult
from headwaiter.engine.session import Session
from headwaiter.engine.worker import Engine
from headwaiter.engine.worker_pool import WorkerPool
from headwaiter.package.manifest import Package

MAX_NEW_TOKENS = 20
PARAMETER_SETS: list[dict[str, object]] = [
    {},
    {"num_beams": 2},
    {"num_beams": 3, "early_stopping": True},
    {"sampling": Sampling(top_k=5), "seed": (7, 0)},
    {"sampling": Sampling(temperature=1.5, top_p=0.8), "seed": (8, 0)},
    {"repetition_penalty": 1.3},
]


@contextmanager
def running_decoder(package: Package, slots: int = 16, workers: int = 1) -> Iterator[Engine[DecodeJob]]:
    """Start a decoder with `slots` slots per worker."""
    max_length = min(package.manifest.limits["max_length"], 61)
    session = Session(package, threads=1)
    decoder: Engine[DecodeJob] = Decoder(session, slots=slots, max_length=max_length)
    if workers > 1:
        decoder = WorkerPool(session, workers * [partial(Decoder, session, slots=slots, max_length=max_length)])
    decoder.start()
    try:
        yield decoder
    finally:
        decoder.close(drain=False)


def decoding_parameters(package: Package, **overrides: object) -> DecodingParameters:
    decoding = package.manifest.decoding
    assert decoding is not None
    defaults = DecodingParameters(
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_ids=frozenset(decoding.eos_token_ids),
        suppress_tokens=decoding.suppress_tokens,
        forced_bos_token_id=decoding.forced_bos_token_id,
        forced_eos_token_id=decoding.forced_eos_token_id,
    )
    return replace(defaults, **overrides)  # type: ignore[arg-type]


def decode_job(package: Package, tokens: list[int], params: DecodingParameters, **options: object) -> DecodeJob:
    decoding = package.manifest.decoding
    assert decoding is not None
    if package.manifest.task == "generation":
        return DecodeJob({}, 0, tuple(tokens), params, **options)  # type: ignore[arg-type]
    return DecodeJob({"tokens": np.array(tokens)}, len(tokens), decoding.decoder_start_token_ids, params, **options)  # type: ignore[arg-type]


def random_texts(package: Package, count: int, seed: int = 0) -> list[list[int]]:
    """Token ids of random texts."""
    rng = np.random.default_rng(seed)
    vocabulary = next(
        int(port.shape[1]) for port in package.manifest.graphs["decoder"].outputs if port.name == "logits"
    )
    return [rng.integers(3, vocabulary - 1, rng.integers(2, 14)).tolist() for _ in range(count)]


def run_jobs(decoder: Engine[DecodeJob], jobs: list[DecodeJob]) -> list[DecodingResult]:
    for job in jobs:
        decoder.submit(job)
    return [job.future.result(60) for job in jobs]


def result_or_none(job: DecodeJob) -> DecodingResult | None:
    """Wait for a job; None if it was cancelled."""
    try:
        return job.future.result(60)
    except CancelledError:
        return None


class Canceller:
    """An `on_token` callback that cancels its job after `after` tokens (None: never)."""

    def __init__(self, job: DecodeJob, after: int | None) -> None:
        self.job, self.remaining = job, after

    def __call__(self, _token: int) -> None:
        if self.remaining is not None:
            self.remaining -= 1
            if self.remaining <= 0:
                self.job.future.cancel()
