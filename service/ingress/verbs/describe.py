from __future__ import annotations

from dataclasses import fields
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import common_pb2
from headwaiter.v1 import models_pb2 as pb
from service.ingress.calls import Call
from service.ingress.desk import Desk
from service.ingress.endpoint import Verbs
from service.tasks.decoding import Decoding


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
        limits={**manifest.limits, **desk.limits},
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
        response.decoding.CopyFrom(_defaults(manifest.decoding.model_dump(), desk.limits))
    return response


def _defaults(stated: dict[str, Any], limits: dict[str, int]) -> common_pb2.Decoding:
    """What holds where a request does not say: the model's own, within the limits."""
    known = {field.name: stated.get(field.name) for field in fields(Decoding)}
    known |= {"best": 1, "max_new_tokens": min(stated["max_new_tokens"], limits["new_tokens"])}
    return common_pb2.Decoding(**{name: value for name, value in known.items() if value is not None})
