"""Parses response messages into results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from headwaiter.client.results import (
    Action,
    Box,
    ClassificationResult,
    Description,
    DetectionResult,
    FinishReason,
    GeneratedImages,
    GeneratedText,
    Hypothesis,
    Label,
    Languages,
    Model,
    ModelSummary,
    Timing,
    Usage,
)
from headwaiter.v1 import common_pb2, models_pb2, policy_pb2

_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class CommonFields(TypedDict):
    model: Model
    usage: Usage
    timing: Timing


def common_fields(reply: Any) -> CommonFields:
    """Return model, usage and timing of a reply that has all three."""
    model, usage, timing = reply.model, reply.usage, reply.timing
    return {
        "model": Model(model.name, model.version),
        "usage": Usage(usage.input_tokens, usage.output_tokens, usage.images),
        "timing": Timing(timing.queue_ms, timing.prepare_ms, timing.run_ms),
    }


def generated_text(result: Any, common: CommonFields) -> GeneratedText:
    sentences = _hypotheses(result.sentences) if "sentences" in result.DESCRIPTOR.fields_by_name else ()
    return GeneratedText(hypotheses=_hypotheses(result.hypotheses), sentences=sentences, **common)


def done(event: common_pb2.Done) -> GeneratedText:
    return GeneratedText(hypotheses=(_hypothesis(event),), **common_fields(event))


def classification(result: Any, common: CommonFields) -> ClassificationResult:
    labels = tuple(Label(label.name, label.index, label.score) for label in result.labels)
    return ClassificationResult(labels=labels, **common)


def detection(result: Any, common: CommonFields) -> DetectionResult:
    boxes = tuple(
        Box(box.name, box.index, box.score, box.x_min, box.y_min, box.x_max, box.y_max) for box in result.boxes
    )
    return DetectionResult(width=result.width, height=result.height, boxes=boxes, **common)


def action(result: policy_pb2.Action, common: CommonFields) -> Action:
    kind = result.WhichOneof("choice")
    return Action(
        discrete=result.discrete if kind == "discrete" else None,
        continuous=tuple(result.continuous.values) if kind == "continuous" else None,
        scores=tuple(result.scores),
        **common,
    )


def images(reply: Any) -> GeneratedImages:
    return GeneratedImages(images=tuple(image.data for image in reply.images), **common_fields(reply))


def models(reply: models_pb2.ListModelsResponse) -> list[ModelSummary]:
    return [ModelSummary(model.name, model.task, model.version, model.ready) for model in reply.models]


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


def _hypotheses(messages: Sequence[common_pb2.Hypothesis]) -> tuple[Hypothesis, ...]:
    return tuple(map(_hypothesis, messages))


def _hypothesis(message: common_pb2.Hypothesis | common_pb2.Done) -> Hypothesis:
    return Hypothesis(message.text, message.score, _FINISH_REASONS.get(message.finish_reason))
