"""The images of one request have a common budget, and preprocessing ends when nobody waits for it."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from typing import Any

import pytest
from PIL import Image

from headwaiter.api.executor import ModelIdentity, RequestExecutor
from headwaiter.engine.futures import Pending
from headwaiter.engine.jobs import DeadlineError
from headwaiter.tasks.captioning import Captioning
from headwaiter.tasks.classification import Classification
from headwaiter.tasks.detection import Detection
from headwaiter.tasks.errors import InputError
from headwaiter.tasks.task import Submission, Task
from headwaiter.v1 import captioning_pb2, classification_pb2, common_pb2, detection_pb2
from tests.conftest import Packages
from tests.task_kit import open_task

_SIDE = 40


def _image() -> common_pb2.Image:
    buffer = io.BytesIO()
    Image.new("1", (_SIDE, _SIDE)).save(buffer, "PNG")
    return common_pb2.Image(data=buffer.getvalue())


def _requests(count: int) -> dict[str, tuple[type[Task[Any]], Any, str]]:
    images = [_image() for _ in range(count)]
    inputs = [classification_pb2.Input(image=image) for image in images]
    return {
        "detr": (Detection, detection_pb2.DetectRequest(image=images), "image[{}]"),
        "vit": (Classification, classification_pb2.ClassifyRequest(input=inputs), "input[{}].image"),
        "caption-vit": (Captioning, captioning_pb2.CaptionRequest(image=images), "image[{}]"),
    }


@pytest.mark.parametrize("kind", ["detr", "vit", "caption-vit"])
def test_parse_images_beyond_request_pixels_are_rejected(packages: Packages, kind: str) -> None:
    task_class, request, field = _requests(4)[kind]
    limit = 2 * _SIDE * _SIDE
    task: Any = open_task(task_class, packages(kind, "fp32").package, limits={"request_pixels": limit})
    for _ in range(2):  # the budget is that of one request
        first = task.parse(request, None).inputs[0]
        with pytest.raises(InputError, match=f"the limit is {limit:,} for all images") as caught:
            first()  # before any image is decoded
        assert (caught.value.field, caught.value.limit) == (field.format(2), limit)
    _, smaller, _ = _requests(2)[kind]
    for submit in task.parse(smaller, None).inputs:
        submit()


@pytest.mark.parametrize("kind", ["detr", "vit", "caption-vit"])
def test_parse_images_beyond_prepared_size_are_rejected(packages: Packages, kind: str) -> None:
    count = 256
    task_class, request, _ = _requests(count)[kind]
    task: Any = open_task(task_class, packages(kind, "fp32").package, limits={"prepared_mb": 1})
    prepared: list[Pending[Any]] = []
    with pytest.raises(InputError, match=r"brings the model inputs of the request to 2 MiB; the limit is 1 MiB"):
        prepared.extend(submit() for submit in task.parse(request, None).inputs)
    assert 0 < len(prepared) < count


class _Unrecorded:
    def record_time_to_first_token(self, method: str, seconds: float) -> None: ...

    def record_inter_token_latency(self, method: str, seconds: float) -> None: ...


class _SlowInputs:
    """Inputs whose preprocessing takes 20 ms each and is counted."""

    def __init__(self) -> None:
        self.count, self.started = 0, threading.Event()

    def __call__(self) -> Pending[Any]:
        self.count += 1
        self.started.set()
        time.sleep(0.02)
        return Pending([], lambda _: None)


async def test_execute_cancelled_stops_preprocessing_between_inputs() -> None:
    executor, inputs = RequestExecutor(ModelIdentity("slow", "1"), _Unrecorded()), _SlowInputs()
    request = asyncio.create_task(executor.execute(Submission([inputs] * 200, cost=None)))
    await asyncio.to_thread(inputs.started.wait, 10)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    reached = inputs.count
    await asyncio.sleep(0.2)
    assert inputs.count <= reached + 1
    executor.close()


async def test_execute_deadline_stops_preprocessing_between_inputs() -> None:
    executor, inputs = RequestExecutor(ModelIdentity("slow", "1"), _Unrecorded()), _SlowInputs()
    with pytest.raises(DeadlineError):
        await executor.execute(Submission([inputs] * 200, cost=None), time.monotonic() + 0.1)
    assert 0 < inputs.count < 200
    executor.close()
