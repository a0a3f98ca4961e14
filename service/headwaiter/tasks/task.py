"""The interface of a task: parse a request message, submit its inputs to the engine, format the results as a response.

A task names each of its RPC methods with an object that says how the method is served. `headwaiter.api.handlers` runs
them; tasks know nothing of transports, keys, metrics or deadlines in headers.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from google.protobuf.message import Message
from PIL import Image

from headwaiter.engine.futures import Pending
from headwaiter.engine.settings import ModelSettings
from headwaiter.engine.worker import Engine
from headwaiter.package.manifest import Manifest, Package
from headwaiter.tasks.decoding import DecodingLimits
from headwaiter.tasks.results import Timing, Usage

if TYPE_CHECKING:
    from headwaiter.tasks.text_generation import GeneratedTextStream

_BLANK_IMAGE_SIDE = 64


class Result(Protocol):
    """The result of one input."""

    @property
    def usage(self) -> Usage: ...

    @property
    def timing(self) -> Timing: ...


Request = TypeVar("Request", bound=Message)
ResultT = TypeVar("ResultT", bound=Result)
EngineT = TypeVar("EngineT", bound=Engine[Any])


@dataclass(frozen=True, slots=True)
class Submission(Generic[ResultT]):
    """A parsed request: one function per input, which preprocesses it and submits it to the engine.

    `cost` is the amount of preprocessing in characters of text, or None for images; cheap preprocessing runs on the
    event loop, the rest in threads.
    """

    inputs: Sequence[Callable[[], Pending[ResultT]]]
    cost: int | None


@dataclass(frozen=True, slots=True)
class StreamSubmission:
    """A parsed request for a stream of text: `begin` preprocesses and submits its input; `cost` as in `Submission`."""

    begin: Callable[[], GeneratedTextStream]
    cost: int | None


@dataclass(frozen=True, slots=True)
class UnaryMethod(Generic[Request, ResultT]):
    """One request, one response. `parse` takes the request and its deadline in seconds of `time.monotonic()`."""

    parse: Callable[[Request, float | None], Submission[ResultT]]
    format: Callable[[Sequence[ResultT]], Message]
    formats_off_loop: bool = False  # formatting takes long, so it runs in a thread


@dataclass(frozen=True, slots=True)
class TextStreamMethod(Generic[Request]):
    """One request, a stream of text. `response` is a message with the alternatives `delta` and `done`."""

    parse: Callable[[Request, float | None], StreamSubmission]
    response: type[Message]


class Session(Protocol):
    """The server's side of one bidirectional stream."""

    async def receive(self, request: Any) -> tuple[Message, Timing] | None:
        """Return the response to a message and its timing, or None if the message has no response."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SessionMethod:
    """A bidirectional stream of messages."""

    open: Callable[[], Session]


TaskMethod = UnaryMethod[Any, Any] | TextStreamMethod[Any] | SessionMethod


class Task(ABC, Generic[EngineT]):
    """What a model does. Threads may share it: apart from the engine it has no state that changes."""

    max_prompt_tokens: ClassVar[int | None] = None
    """Longest prompt of a decoder; it limits the KV cache. None: as long as the model allows."""
    decoding_limits: DecodingLimits | None = None

    def __init__(self, package: Package, engine: EngineT, settings: ModelSettings) -> None:
        self.package, self.engine, self.settings = package, engine, settings

    @property
    def manifest(self) -> Manifest:
        return self.package.manifest

    @abstractmethod
    def methods(self) -> Mapping[str, TaskMethod]:
        """The methods of the task's service that the model supports, by name."""

    @abstractmethod
    def warm_up(self) -> None:
        """Run one small request, so that the first real one does not pay for lazy initialisation."""

    def blank_image(self) -> bytes:
        """Return a PNG file of the model's fixed input size, or of 64 × 64 pixels."""
        limits, buffer = self.manifest.limits, io.BytesIO()
        size = limits.get("width", _BLANK_IMAGE_SIDE), limits.get("height", _BLANK_IMAGE_SIDE)
        Image.new("RGB", size).save(buffer, "PNG")
        return buffer.getvalue()
