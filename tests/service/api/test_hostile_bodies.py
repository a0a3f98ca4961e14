"""Counts and sizes are checked on the cheapest representation: a hostile body costs little more than its size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from headwaiter.api.http.body import BodyReader
from headwaiter.api.methods import METHODS
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.translation import Translation
from headwaiter.v1 import policy_pb2, policy_pb2_grpc, translation_pb2
from tests.conftest import Packages
from tests.model_server_kit import serving
from tests.task_kit import open_task

_COUNT = 200_000
_MAX_BYTES = 2 << 20


def _rejection(run: Callable[[], Any]) -> tuple[InputError, int]:
    """The error, and the peak of the memory that was allocated until then."""
    tracemalloc.start()
    try:
        with pytest.raises(InputError) as caught:
            run()
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("method", "content", "field"),
    [
        ("Translate", {f"field{index}": 1 for index in range(_COUNT)}, "field0"),
        ("Translate", {"text": "a", "decoding": {f"field{index}": 1 for index in range(_COUNT)}}, "decoding.field0"),
        ("Translate", {"text": [""] * _COUNT}, "text"),
        ("Translate", {"text": [1] * _COUNT}, "text"),
        ("Classify", {"image": [""] * _COUNT}, "image"),
        ("Act", {"history": [{"unknown": 1}] * _COUNT}, "history[0].unknown"),
    ],
    ids=["unknown", "nested", "inputs", "invalid", "images", "histories"],
)
def test_message_hostile_json_is_rejected_cheaply(method: str, content: dict[str, Any], field: str) -> None:
    reader = BodyReader(METHODS[method], METHODS[method], 32)
    error, peak = _rejection(lambda: reader.message(content))
    assert error.field == field
    assert peak < _MAX_BYTES


def test_parse_too_many_texts_builds_no_work(packages: Packages) -> None:
    task = open_task(Translation, packages("marian", "fp32").package)
    request = translation_pb2.TranslateRequest(text=[""] * _COUNT)
    error, peak = _rejection(lambda: task.parse(request, None))
    assert (error.field, error.limit) == ("text", 256)
    assert peak < _MAX_BYTES


async def test_episode_message_beyond_limit_is_rejected(packages: Packages) -> None:
    large = policy_pb2.Step(state=[0.0] * (1 << 18))
    start = policy_pb2.EpisodeRequest(start=policy_pb2.Start(target_return=1.0, history=[large, large]))
    async with serving(packages, "decision_transformer", limits={"message_mb": 1}) as (channel, _):
        call = policy_pb2_grpc.PolicyStub(channel).Episode(iter([start]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "the limit is 1 MiB" in (caught.value.details() or "")
