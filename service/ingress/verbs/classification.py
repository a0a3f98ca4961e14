from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import classification_pb2 as pb
from service.engine.futures import Pending
from service.ingress.calls import Call
from service.ingress.desk import Desk, account
from service.ingress.endpoint import Verbs
from service.tasks.classification import Label, demand_choice
from service.tasks.errors import InputError


def classification(desk: Desk, model: Any) -> Verbs:
    async def classify(request: pb.ClassifyRequest, call: Call) -> Message:
        top_k = request.top_k if request.HasField("top_k") else None
        threshold = request.threshold if request.HasField("threshold") else None
        demand_choice(top_k, threshold)
        how = {"top_k": top_k, "threshold": threshold, "deadline": call.deadline}
        submits = [_submit(model, each, f"input[{index}]", how) for index, each in enumerate(request.input)]
        answers = await desk.answers("input", submits, characters=_characters(request))
        results = [pb.ClassifyResult(labels=[_label(one) for one in each.answer]) for each in answers]
        return account(desk, call, pb.ClassifyResponse(results=results), answers)

    return {"Classify": classify}


def _submit(model: Any, each: pb.Input, field: str, how: dict[str, Any]) -> Callable[[], Pending[Any]]:
    match each.WhichOneof("content"):
        case "image":
            return partial(model.submit_image, each.image.data, field=f"{field}.image", **how)
        case "text":
            return partial(model.submit_text, each.text, field=f"{field}.text", **how)
        case "text_pair":
            pair = each.text_pair
            return partial(model.submit_text, pair.first, pair.second, field=f"{field}.text_pair", **how)
        case _:
            raise InputError(f"{field} is empty; it has an image, a text or a text_pair", field=field)


def _characters(request: pb.ClassifyRequest) -> int | None:
    """None where there are images."""
    if any(each.HasField("image") for each in request.input):
        return None
    return sum(len(each.text) + len(each.text_pair.first) + len(each.text_pair.second) for each in request.input)


def _label(label: Label) -> pb.Label:
    return pb.Label(name=label.name, index=label.index, score=label.score)
