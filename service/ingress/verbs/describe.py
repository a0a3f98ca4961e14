from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import common_pb2
from headwaiter.v1 import models_pb2 as pb
from service.ingress.calls import Call
from service.ingress.desk import MOST_INPUTS, Desk
from service.ingress.endpoint import Verbs
from service.tasks.decoding import Bounds, Decoding


def describing(desk: Desk, model: Any) -> Verbs:
    description = _describe(desk, model)

    async def describe(_: pb.DescribeRequest, __: Call) -> Message:
        return description

    return {"Describe": describe}


def _describe(desk: Desk, model: Any) -> pb.DescribeResponse:
    manifest = model.manifest
    response = pb.DescribeResponse(
        name=desk.who.name,
        task=manifest.task,
        version=manifest.version,
        family=manifest.family,
        precision=manifest.precision,
        device=model.engine.session.device,
        limits=manifest.limits | _limits(desk, model),
        labels=manifest.labels or (),
        license=manifest.license or "",
        source=manifest.source or "",
        attribution=manifest.attribution or "",
    )
    for side, language in (manifest.languages or {}).items():
        getattr(response.languages, side).append(language)
    if manifest.policy is not None:
        response.state_size, response.action_size = manifest.policy.state_size, manifest.policy.action_size
        response.action_kind = manifest.policy.actions
    if manifest.decoding is not None:
        response.decoding.CopyFrom(_defaults(manifest.decoding.model_dump(), model.task.bounds))
    return response


def _limits(desk: Desk, model: Any) -> dict[str, int]:
    """Those that concern what the model takes and gives, as they are enforced."""
    manifest = model.manifest
    taken = {"text": manifest.preprocessing.text, "pixels": manifest.preprocessing.image, "images": manifest.noise}
    names = {"wait_ms", "message_mb"} | {name for name, reason in taken.items() if reason is not None}
    inputs = {} if manifest.noise is not None else {"inputs": MOST_INPUTS}
    written = asdict(model.task.bounds) if manifest.decoding is not None else {}
    return {name: desk.limits[name] for name in names} | inputs | written


def _defaults(stated: dict[str, Any], bounds: Bounds) -> common_pb2.Decoding:
    """What holds where a request does not say: the model's own, within the limits."""
    known = {field.name: stated.get(field.name) for field in fields(Decoding)}
    known |= {"best": 1, "max_new_tokens": min(stated["max_new_tokens"], bounds.new_tokens)}
    known |= {"beams": min(stated["beams"], bounds.beams)}
    return common_pb2.Decoding(**{name: value for name, value in known.items() if value is not None})
