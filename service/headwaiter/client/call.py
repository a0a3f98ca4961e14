"""Calls as data: the request, the method it is sent to and how its reply is parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

from google.protobuf.message import Message

from headwaiter.client.episode_replay import EpisodeReplay

Result = TypeVar("Result")


class Options(TypedDict, total=False):
    """Options of every call: `timeout` in seconds (default: the client's) and `request_id` (default: random)."""

    timeout: float | None
    request_id: str | None


class Decoding(Options, total=False):
    """Decoding parameters; the model's defaults apply to those that are not set."""

    max_new_tokens: int | None
    num_beams: int | None
    num_return_sequences: int | None
    length_penalty: float | None
    early_stopping: bool | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    """A unary call: one request, one reply."""

    model: str
    method: str
    request: Message
    parse: Callable[[Any], Result]
    options: Options


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A server-streaming call: chunks of text, then a final event with the result."""

    model: str
    method: str
    request: Message
    options: Options


@dataclass(frozen=True, slots=True)
class EpisodeCall:
    """A bidirectional call: observations in, actions out."""

    model: str
    replay: EpisodeReplay
    options: Options
    method: str = "Episode"
