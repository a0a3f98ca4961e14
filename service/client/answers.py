"""Replies to results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from headwaiter.v1 import common_pb2, models_pb2, policy_pb2
from service.client.results import (
    Action,
    Box,
    Classified,
    Description,
    Detected,
    GeneratedImages,
    Hypothesis,
    Label,
    Languages,
    Model,
    ModelSummary,
    Timing,
    Usage,
    Words,
)


class Account(TypedDict):
    model: Model
    usage: Usage
    timing: Timing


def account(reply: Any) -> Account:
    """Of any reply that has all three."""
    model, usage, timing = reply.model, reply.usage, reply.timing
    return {
        "model": Model(model.name, model.version),
        "usage": Usage(usage.input_tokens, usage.output_tokens, usage.images),
        "timing": Timing(timing.queue_ms, timing.prepare_ms, timing.run_ms),
    }


def words(result: Any, common: Account) -> Words:
    sentences = _hypotheses(result.sentences) if "sentences" in result.DESCRIPTOR.fields_by_name else ()
    return Words(hypotheses=_hypotheses(result.hypotheses), sentences=sentences, **common)


def done(end: common_pb2.Done) -> Words:
    return Words(hypotheses=(Hypothesis(end.text, end.score),), **account(end))


def classified(result: Any, common: Account) -> Classified:
    return Classified(labels=tuple(Label(one.name, one.index, one.score) for one in result.labels), **common)


def detected(result: Any, common: Account) -> Detected:
    boxes = tuple(
        Box(one.name, one.index, one.score, one.x_min, one.y_min, one.x_max, one.y_max) for one in result.boxes
    )
    return Detected(width=result.width, height=result.height, boxes=boxes, **common)


def action(result: policy_pb2.Action, common: Account) -> Action:
    chosen = result.WhichOneof("choice")
    return Action(
        discrete=result.discrete if chosen == "discrete" else None,
        continuous=tuple(result.continuous.values) if chosen == "continuous" else None,
        scores=tuple(result.scores),
        **common,
    )


def images(reply: Any) -> GeneratedImages:
    return GeneratedImages(images=tuple(one.data for one in reply.images), **account(reply))


def models(reply: models_pb2.ListModelsResponse) -> list[ModelSummary]:
    return [ModelSummary(one.name, one.task, one.version, one.ready) for one in reply.models]


def description(reply: models_pb2.DescribeResponse) -> Description:
    has: Callable[[str], bool] = reply.HasField
    languages, decoding = reply.languages, reply.decoding
    return Description(
        name=reply.name,
        task=reply.task,
        version=reply.version,
        family=reply.family,
        precision=reply.precision,
        device=reply.device,
        limits=dict(reply.limits),
        labels=tuple(reply.labels),
        languages=Languages(tuple(languages.source), tuple(languages.target)) if has("languages") else None,
        state_size=reply.state_size if has("state_size") else None,
        action_size=reply.action_size if has("action_size") else None,
        action_kind=reply.action_kind if has("action_kind") else None,
        decoding={field.name: value for field, value in decoding.ListFields()} if has("decoding") else None,
        license=reply.license,
        source=reply.source,
        attribution=reply.attribution,
    )


def _hypotheses(found: Sequence[common_pb2.Hypothesis]) -> tuple[Hypothesis, ...]:
    return tuple(Hypothesis(one.text, one.score) for one in found)
