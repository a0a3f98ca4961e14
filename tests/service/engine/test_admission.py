"""Admission control: which requests are rejected, and that accepted ones are not judged again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headwaiter.engine.admission import AdmissionController, PreprocessingBacklog
from headwaiter.engine.jobs import QueueFullError
from headwaiter.engine.sequence import DecodeJob
from headwaiter.engine.worker import Engine
from tests.conftest import Packages
from tests.service.engine.decoder_kit import decode_job, decoding_parameters, random_texts, running_decoder


@contextmanager
def _blocked_decoder(packages: Packages, queued: int) -> Iterator[Engine[DecodeJob]]:
    """A decoder whose only slot is held, with further jobs in its queue."""
    package = packages("gpt2", "fp32").package
    (text,) = random_texts(package, 1)
    params, released = decoding_parameters(package), threading.Event()
    with running_decoder(package, slots=1) as decoder:
        decoder.submit(decode_job(package, text, params, on_token=lambda _: released.wait(20)))
        end = time.monotonic() + 30
        while decoder.counters.slots_in_use == 0:
            assert time.monotonic() < end
            time.sleep(0.001)
        for _ in range(queued):
            decoder.submit(decode_job(package, text, params))
        try:
            yield decoder
        finally:
            released.set()


@pytest.mark.parametrize(("queued", "is_admitted"), [(1023, True), (1024, False)])
def test_admit_without_estimate_limits_queued_jobs(packages: Packages, queued: int, is_admitted: bool) -> None:
    with _blocked_decoder(packages, queued) as decoder:
        admission = AdmissionController(decoder, name="writer", max_wait_seconds=1.0)
        if is_admitted:
            admission.admit()
        else:
            with pytest.raises(QueueFullError, match="writer is overloaded: 1,024 jobs are queued"):
                admission.admit()


def test_admit_preprocessing_backlog_counts_as_wait(packages: Packages) -> None:
    with _blocked_decoder(packages, 0) as decoder:
        backlog = PreprocessingBacklog(threads=2)
        admission = AdmissionController(decoder, name="writer", max_wait_seconds=1.0, preprocessing=backlog)
        for _ in range(3):
            backlog.begin()
        admission.admit()
        backlog.end(30.0)  # a mean of 3 s: the two that are left take 3 s on two threads
        with pytest.raises(QueueFullError, match=r"estimated wait is 3\.0 s; the limit is 1\.0 s") as caught:
            admission.admit()
        assert caught.value.retry_after == pytest.approx(2.1)
        for _ in range(2):
            backlog.end(None)
        admission.admit()
