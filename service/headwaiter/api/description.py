"""Describes a model: what it is, which limits are enforced, which decoding parameters are the default."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from headwaiter.package.manifest import DecodingDefaults
from headwaiter.tasks.decoding import DecodingLimits, DecodingOptions
from headwaiter.tasks.errors import MAX_INPUTS
from headwaiter.tasks.task import Task
from headwaiter.v1 import common_pb2
from headwaiter.v1 import models_pb2 as pb

_IMAGE_LIMITS = ("pixels", "request_pixels", "prepared_mb")


def describe(name: str, task: Task[Any]) -> pb.DescribeResponse:
    manifest = task.manifest
    response = pb.DescribeResponse(
        name=name,
        task=manifest.task,
        version=manifest.version,
        family=manifest.family,
        precision=manifest.precision,
        device=task.engine.session.device,
        limits=manifest.limits | _limits(task),
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
    if manifest.decoding is not None and task.decoding_limits is not None:
        response.decoding.CopyFrom(_defaults(manifest.decoding, task.decoding_limits))
    return response


def _limits(task: Task[Any]) -> dict[str, int]:
    """The enforced limits that apply to the model's inputs and outputs."""
    manifest = task.manifest
    text, image = manifest.preprocessing.text, manifest.preprocessing.image
    applicable = {"text": text, **dict.fromkeys(_IMAGE_LIMITS, image), "images": manifest.noise}
    names = {"max_queue_wait_ms", "message_mb"} | {name for name, spec in applicable.items() if spec is not None}
    inputs = {} if manifest.noise is not None else {"inputs": MAX_INPUTS}
    decoding = {} if task.decoding_limits is None else asdict(task.decoding_limits)
    return task.settings.limits.model_dump(include=names) | inputs | decoding


def _defaults(decoding: DecodingDefaults, limits: DecodingLimits) -> common_pb2.Decoding:
    """The default decoding parameters: those of the manifest, capped at the limits."""
    manifest_decoding = decoding.model_dump()
    defaults = {field.name: manifest_decoding.get(field.name) for field in fields(DecodingOptions)}
    defaults["num_return_sequences"] = 1
    defaults["max_new_tokens"] = min(decoding.max_new_tokens, limits.new_tokens)
    defaults["num_beams"] = min(decoding.num_beams, limits.num_beams)
    return common_pb2.Decoding(**{name: value for name, value in defaults.items() if value is not None})
