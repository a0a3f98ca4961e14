"""A served model's front: whoever calls, over gRPC or HTTP, passes here. Keys, sizes, counts and logs are the same for
all methods; what a method does is its verb's business."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, NoReturn, Protocol

from google.protobuf.message import Message
from grpc import StatusCode

from service.ingress.calls import Call
from service.ingress.errors import FailedError, LeftError, UnauthenticatedError, WrongTaskError, explain
from service.logs import Sparingly
from service.tasks.errors import InputError

_MB = 1 << 20
_LOG = logging.getLogger("headwaiter.requests")

Unary = Callable[[Any, Call], Awaitable[Message]]
Streaming = Callable[[Any, Call], AsyncGenerator[Message, None]]
Verbs = Mapping[str, Unary | Streaming]


class Keyring(Protocol):
    def check(self, bearer: str | None) -> str | None: ...


class Recorder(Protocol):
    """Where calls are counted."""

    def finished(self, method: str, code: str, seconds: float) -> None: ...

    def stages(self, queue_ms: float, prepare_ms: float, run_ms: float) -> None: ...

    def usage(self, input_tokens: int, output_tokens: int, images: int) -> None: ...


class Endpoint:
    def __init__(
        self,
        name: str,
        verbs: Verbs,
        *,
        does: str,
        keys: Keyring | None,
        recorder: Recorder,
        message_mb: int = 32,
        local: bool = False,
    ) -> None:
        """`local`: without keys, only this machine is answered. Ray opens a replica's gRPC port to everyone."""
        self.name, self.verbs, self.does = name, verbs, does
        self._keys, self._recorder, self._message_mb = keys, recorder, message_mb
        self._local = local and keys is None
        self._refusals = Sparingly()

    async def answer(self, request: Message, call: Call) -> Message:
        with self._served(call):
            self._demand_size(request)
            response: Message = await self._verb(call)(request, call)
            return response

    async def stream(self, request: Any, call: Call) -> AsyncGenerator[Message, None]:
        """`request` is a message, or for a stream of them, an asynchronous iterator."""
        with self._served(call):
            if isinstance(request, Message):
                self._demand_size(request)
            async with aclosing(self._verb(call)(request, call)) as responses:
                async for response in responses:
                    yield response

    def demand_key(self, bearer: str | None) -> None:
        if self._keys is not None and self._keys.check(bearer) is None:
            raise UnauthenticatedError("no valid key was sent; send one as `authorization: Bearer KEY`")

    def _demand_local(self, call: Call) -> None:
        if call.is_left:
            raise LeftError("the caller has gone")
        if self._local and not call.is_local:
            raise UnauthenticatedError("this service answers calls from its own machine only; others need keys set")

    def refuse(self, call: Call, refusal: Exception) -> NoReturn:
        """As if the method had refused; who may not ask at all is told that instead."""
        with self._served(call):
            raise refusal

    def failed(self, call: Call, error: BaseException) -> FailedError:
        """Counts and logs what a call ended with."""
        failure = explain(error, call.request_id)
        unexpected = error if failure.code is StatusCode.INTERNAL else None
        self._finish(call, failure.code, failure.message, failure.field, unexpected)
        return FailedError(failure)

    @contextmanager
    def _served(self, call: Call) -> Iterator[None]:
        try:
            self._demand_local(call)
            self.demand_key(call.bearer)
            yield
        except Exception as error:
            raise self.failed(call, error) from error
        except BaseException as error:  # cancelled, or the stream's reader has gone
            self._finish(call, StatusCode.CANCELLED, str(error), None, None)
            raise
        else:
            self._finish(call, StatusCode.OK, "", None, None)

    def _verb(self, call: Call) -> Any:
        if call.method not in self.verbs:
            known = ", ".join(sorted(self.verbs))
            raise WrongTaskError(f"{self.name} does {self.does}: it has {known}, not {call.method}")
        return self.verbs[call.method]

    def _demand_size(self, request: Message) -> None:
        size = request.ByteSize() / _MB
        if size > self._message_mb:
            sentence = f"the request has {size:,.1f} MB; the limit is {self._message_mb:,} MB"
            raise InputError(sentence, field="", limit=self._message_mb)

    def _finish(
        self, call: Call, code: StatusCode, message: str, field: str | None, error: BaseException | None
    ) -> None:
        seconds, timing, usage = call.seconds, call.timing, call.usage
        self._recorder.finished(call.method, code.name, seconds)
        if code is StatusCode.OK:
            self._recorder.stages(timing.queue_ms, timing.prepare_ms, timing.run_ms)
            self._recorder.usage(usage.input_tokens, usage.output_tokens, usage.images)
        level = logging.ERROR if error is not None else logging.INFO
        untold = self._refusals.tell() if code is StatusCode.RESOURCE_EXHAUSTED else 0
        if _LOG.isEnabledFor(level) and untold is not None:
            facts = {
                "request_id": call.request_id,
                "model": self.name,
                "method": call.method,
                "code": code.name,
                "ms": round(1e3 * seconds, 2),
                "queue_ms": round(timing.queue_ms, 2),
                "run_ms": round(timing.run_ms, 2),
                "field": field,
                "untold": untold or None,
            }
            _LOG.log(level, message or "answered", extra={"facts": facts}, exc_info=error)
