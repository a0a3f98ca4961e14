"""Conversions between protobuf messages and values that several tasks share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message

from headwaiter.tasks.decoding import DecodingOptions
from headwaiter.tasks.results import Hypothesis
from headwaiter.v1 import common_pb2


def optional(message: Message, field: str, default: Any = None) -> Any:
    """Return the value of an optional field, or `default` if it is not set."""
    return getattr(message, field) if message.HasField(field) else default


def parse_decoding(message: common_pb2.Decoding) -> DecodingOptions:
    """Only the fields that the request sets; the others stay None."""
    return DecodingOptions(**{field.name: value for field, value in message.ListFields()})


def hypothesis_messages(hypotheses: Iterable[Hypothesis]) -> list[common_pb2.Hypothesis]:
    return [
        common_pb2.Hypothesis(text=hypothesis.text, score=hypothesis.score, finish_reason=hypothesis.finish_reason)
        for hypothesis in hypotheses
    ]
