"""Calls as data: what to ask of whom, and how to read the reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from google.protobuf.message import Message

from service.client.script import Script

Result = TypeVar("Result")


class Options(TypedDict, total=False):
    """Of every call: seconds until it must have ended, and the id to find it by."""

    timeout: float | None
    request_id: str | None


class Decoding(Options, total=False):
    """How tokens are chosen; what is left out is the model's own default."""

    max_new_tokens: int | None
    beams: int | None
    best: int | None
    length_penalty: float | None
    early_stopping: bool | None
    sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """One reply to one request."""

    model: str
    method: str
    request: Message
    parse: Callable[[Any], Result]
    options: Options


@dataclass(frozen=True, slots=True)
class StreamCall:
    """Pieces of text, then an end."""

    model: str
    method: str
    request: Message
    options: Options


@dataclass(frozen=True, slots=True)
class EpisodeCall:
    model: str
    script: Script
    options: Options
    method: str = "Episode"
