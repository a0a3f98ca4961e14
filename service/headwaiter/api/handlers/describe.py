from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import MAX_INPUTS, RequestExecutor
from headwaiter.tasks.decoding import DecodingLimits, DecodingOptions
from headwaiter.v1 import common_pb2
from headwaiter.v1 import models_pb2 as pb


def model_description(executor: RequestExecutor, model: Any) -> Handlers:
    description = _describe(executor, model)

    async def describe(_: pb.DescribeRequest, __: RequestContext) -> Message:
        return description

    return {"Describe": describe}


def _describe(executor: RequestExecutor, model: Any) -> pb.DescribeResponse:
    manifest = model.manifest
    response = pb.DescribeResponse(
        name=executor.identity.name,
        task=manifest.task,
        version=manifest.version,
        family=manifest.family,
        precision=manifest.precision,
        device=model.engine.session.device,
        limits=manifest.limits | _limits(executor, model),
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
        response.decoding.CopyFrom(_defaults(manifest.decoding.model_dump(), model.task.decoding_limits))
    return response


def _limits(executor: RequestExecutor, model: Any) -> dict[str, int]:
    """The enforced limits that apply to the model's inputs and outputs."""
    manifest = model.manifest
    applicable = {"text": manifest.preprocessing.text, "pixels": manifest.preprocessing.image, "images": manifest.noise}
    names = {"max_queue_wait_ms", "message_mb"} | {name for name, spec in applicable.items() if spec is not None}
    inputs = {} if manifest.noise is not None else {"inputs": MAX_INPUTS}
    decoding = asdict(model.task.decoding_limits) if manifest.decoding is not None else {}
    return executor.limits.model_dump(include=names) | inputs | decoding


def _defaults(manifest_decoding: dict[str, Any], limits: DecodingLimits) -> common_pb2.Decoding:
    """The default decoding parameters: those of the manifest, capped at the limits."""
    defaults = {field.name: manifest_decoding.get(field.name) for field in fields(DecodingOptions)}
    defaults["num_return_sequences"] = 1
    defaults["max_new_tokens"] = min(manifest_decoding["max_new_tokens"], limits.new_tokens)
    defaults["num_beams"] = min(manifest_decoding["num_beams"], limits.num_beams)
    return common_pb2.Decoding(**{name: value for name, value in defaults.items() if value is not None})
