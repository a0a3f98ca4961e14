"""In process, requests are rejected only if a maximum wait was set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headwaiter import open_model
from headwaiter.engine.jobs import QueueFullError
from headwaiter.package.manifest import PackageError
from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.generation import GenerationModel
from tests.conftest import Packages

_QUEUED = 1_024  # the most that are accepted while there is no throughput estimate


@contextmanager
def _backlogged(packages: Packages, **settings: object) -> Iterator[GenerationModel]:
    """A model with one slot, which is held, and a long queue."""
    folder = packages("gpt2", "fp32").package.folder
    with open_model(folder, "generation", threads=1, max_sequences=1, **settings) as model:  # type: ignore[arg-type]
        released = threading.Event()
        (decoder_input,) = [model.task._input("a", "prompt")]
        model.task.submit([decoder_input], DecodingOptions(), on_token=lambda *_: released.wait(30))
        pending = [model.task.generate("b", DecodingOptions(max_new_tokens=1)) for _ in range(_QUEUED + 1)]
        try:
            yield model
        finally:
            for request in pending:
                request.cancel()
            released.set()


def test_generate_with_maximum_wait_rejects_when_overloaded(packages: Packages) -> None:
    with _backlogged(packages, limits={"max_queue_wait_ms": 1_000}) as model:
        with pytest.raises(QueueFullError, match="is overloaded"):
            model.generate("c")
        with pytest.raises(QueueFullError, match="is overloaded"):
            model.generate_stream("c")


def test_generate_without_maximum_wait_queues(packages: Packages) -> None:
    with _backlogged(packages) as model:
        thread = threading.Thread(target=model.generate, args=("c",), kwargs={"max_new_tokens": 1}, daemon=True)
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(30)
    assert not thread.is_alive()


def test_open_model_other_task_is_rejected(packages: Packages) -> None:
    folder = packages("gpt2", "fp32").package.folder
    with pytest.raises(PackageError, match="is a package for generation, not for translation"):
        open_model(folder, "translation")
