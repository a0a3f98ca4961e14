from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor, attach_total_usage
from headwaiter.engine.futures import Pending
from headwaiter.tasks.classification import Label, check_options
from headwaiter.tasks.errors import InputError
from headwaiter.v1 import classification_pb2 as pb


def classification(executor: RequestExecutor, model: Any) -> Handlers:
    async def classify(request: pb.ClassifyRequest, context: RequestContext) -> Message:
        top_k = request.top_k if request.HasField("top_k") else None
        threshold = request.threshold if request.HasField("threshold") else None
        check_options(top_k, threshold)
        options = {"top_k": top_k, "threshold": threshold, "deadline": context.deadline}
        submits = [_submit(model, item, f"input[{index}]", options) for index, item in enumerate(request.input)]
        outputs = await executor.execute("input", submits, cost=_preprocessing_cost(request))
        results = [pb.ClassifyResult(labels=[_label(label) for label in output.answer]) for output in outputs]
        return attach_total_usage(executor, context, pb.ClassifyResponse(results=results), outputs)

    return {"Classify": classify}


def _submit(model: Any, item: pb.Input, field: str, options: dict[str, Any]) -> Callable[[], Pending[Any]]:
    match item.WhichOneof("content"):
        case "image":
            return partial(model.submit_image, item.image.data, field=f"{field}.image", **options)
        case "text":
            return partial(model.submit_text, item.text, field=f"{field}.text", **options)
        case "text_pair":
            pair = item.text_pair
            return partial(model.submit_text, pair.first, pair.second, field=f"{field}.text_pair", **options)
        case _:
            raise InputError(f"{field} is empty; set image, text or text_pair", field=field)


def _preprocessing_cost(request: pb.ClassifyRequest) -> int | None:
    """Number of characters, or None if there are images."""
    if any(item.HasField("image") for item in request.input):
        return None
    return sum(len(item.text) + len(item.text_pair.first) + len(item.text_pair.second) for item in request.input)


def _label(label: Label) -> pb.Label:
    return pb.Label(name=label.name, index=label.index, score=label.score)
