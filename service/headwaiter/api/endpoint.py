"""Transport-independent entry point of a served model: authentication, admission, size limits, metrics, request logs.

gRPC and HTTP both call `Endpoint.accept` as soon as the metadata of a request is there, before its message or body is
read, and then `answer` or `stream`, which call the handler of the method.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from typing import Any, Protocol

from google.protobuf.message import Message
from grpc import StatusCode

from headwaiter.api.byte_budget import ByteBudget
from headwaiter.api.context import RequestContext
from headwaiter.api.errors import FailedError, PeerDisconnectedError, UnauthenticatedError, WrongTaskError, to_failure
from headwaiter.api.logs import LogRateLimiter
from headwaiter.api.methods import METHODS
from headwaiter.engine.admission import AdmissionController
from headwaiter.engine.settings import DEFAULT_LIMITS
from headwaiter.tasks.errors import InputError

_MB = 1 << 20
_LOG = logging.getLogger("headwaiter.requests")
# Clients can cause them at a high rate and at little cost to themselves.
_RATE_LIMITED_CODES = (StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAUTHENTICATED)

UnaryHandler = Callable[[Any, RequestContext], Awaitable[Message]]
StreamingHandler = Callable[[Any, RequestContext], AsyncGenerator[Message, None]]
Handlers = Mapping[str, UnaryHandler | StreamingHandler]


class KeyChecker(Protocol):
    def check(self, bearer: str | None) -> str | None: ...


class RequestRecorder(Protocol):
    """Records request metrics."""

    def record_request(self, method: str, code: str, seconds: float) -> None: ...

    def record_stages(self, queue_ms: float, prepare_ms: float, run_ms: float) -> None: ...

    def record_usage(self, input_tokens: int, output_tokens: int, images: int) -> None: ...


class Endpoint:
    def __init__(
        self,
        name: str,
        handlers: Handlers,
        *,
        task_description: str,
        keys: KeyChecker | None,
        recorder: RequestRecorder,
        admission: AdmissionController | None = None,
        message_mb: int = DEFAULT_LIMITS.message_mb,
        concurrent_mb: int = DEFAULT_LIMITS.concurrent_mb,
        local: bool = False,
    ) -> None:
        """`local`: accept only loopback clients if there are no keys, because Ray binds a replica's gRPC port to all
        interfaces."""
        self.name, self.handlers, self.task_description = name, handlers, task_description
        self._keys, self._recorder, self._message_mb = keys, recorder, message_mb
        self._admission, self._local = admission, local and keys is None
        self.budget = ByteBudget(concurrent_mb)
        self._log_limiters = {code: LogRateLimiter() for code in _RATE_LIMITED_CODES}

    def accept(self, context: RequestContext) -> None:
        """Authenticate and admit a request. A request that is not accepted is recorded, and FailedError is raised."""
        try:
            self._accept(context)
        except Exception as error:
            raise self.failed(context, error) from error

    async def answer(self, request: Message, context: RequestContext) -> Message:
        with self._accepted_and_recorded(context):
            self._hold(request, context)
            response: Message = await self._handler(context)(request, context)
            return response

    async def stream(self, request: Any, context: RequestContext) -> AsyncGenerator[Message, None]:
        """`request` is a message or, for client-streaming methods, an asynchronous iterator of messages."""
        with self._accepted_and_recorded(context):
            if isinstance(request, Message):
                self._hold(request, context)
            else:
                request = self._hold_each(request, context)
            async with aclosing(self._handler(context)(request, context)) as responses:
                async for response in responses:
                    yield response

    def _accept(self, context: RequestContext) -> None:
        """Check the peer as soon as it is known, and decide once by the metadata: authenticate, find the handler,
        admit. HTTP has no peer to check: its bind address restricts the clients."""
        if context.is_peer_disconnected:
            raise PeerDisconnectedError("the client disconnected")
        if self._local and not context.is_local:
            raise UnauthenticatedError("this server accepts only local clients; set auth.keys to accept remote ones")
        if context.is_accepted:
            return
        if self._keys is not None and self._keys.check(context.bearer) is None:
            raise UnauthenticatedError("the API key is missing or invalid; send it as `authorization: Bearer KEY`")
        self._handler(context)
        if self._admission is not None and METHODS[context.method].needs_admission:
            self._admission.admit()
        context.is_accepted = True

    def is_authenticated(self, context: RequestContext) -> bool:
        """Whether the client may see the names of the models. For pages that also answer clients without a key."""
        return self._keys is None or self._keys.check(context.bearer) is not None

    def failed(self, context: RequestContext, error: BaseException) -> FailedError:
        """Record and log a failed request; return the error to raise."""
        failure = to_failure(error, context.request_id)
        unexpected = error if failure.code is StatusCode.INTERNAL else None
        self._record(context, failure.code, failure.message, failure.field, unexpected)
        return FailedError(failure)

    @contextmanager
    def _accepted_and_recorded(self, context: RequestContext) -> Iterator[None]:
        try:
            self._accept(context)
            yield
        except Exception as error:
            raise self.failed(context, error) from error
        except BaseException as error:  # cancelled, or the client stopped reading the stream
            self._record(context, StatusCode.CANCELLED, str(error), None, None)
            raise
        else:
            self._record(context, StatusCode.OK, "", None, None)

    def _handler(self, context: RequestContext) -> Any:
        if context.method not in self.handlers:
            raise self.unsupported(context.method)
        return self.handlers[context.method]

    def unsupported(self, method: str) -> Exception:
        """The error of a method that has no handler."""
        supported = ", ".join(sorted(self.handlers))
        return WrongTaskError(
            f"{self.name} (task: {self.task_description}) does not support {method}; it supports {supported}"
        )

    async def _hold_each(self, requests: AsyncIterator[Message], context: RequestContext) -> AsyncIterator[Message]:
        async for request in requests:
            self.budget.release(context)  # of the previous message
            self._hold(request, context)
            yield request

    def _hold(self, request: Message, context: RequestContext) -> None:
        """Check the size of a message and count it until the request ends. The body of an HTTP request is counted
        already, and may be larger than its message."""
        size = request.ByteSize()
        if size > self._message_mb * _MB:
            message = f"the request has {size / _MB:,.1f} MiB; the limit is {self._message_mb:,} MiB"
            raise InputError(message, field="", limit=self._message_mb)
        self.budget.hold(context, max(size, context.held_bytes))

    def _record(
        self, context: RequestContext, code: StatusCode, message: str, field: str | None, error: BaseException | None
    ) -> None:
        self.budget.release(context)
        seconds, timing, usage = context.elapsed_seconds, context.timing, context.usage
        self._recorder.record_request(context.method, code.name, seconds)
        if code is StatusCode.OK:
            self._recorder.record_stages(timing.queue_ms, timing.prepare_ms, timing.run_ms)
            self._recorder.record_usage(usage.input_tokens, usage.output_tokens, usage.images)
        level = logging.ERROR if error is not None else logging.INFO
        suppressed = self._log_limiters[code].try_acquire() if code in self._log_limiters else 0
        if _LOG.isEnabledFor(level) and suppressed is not None:
            log_fields = {
                "request_id": context.request_id,
                "model": self.name,
                "method": context.method,
                "code": code.name,
                "duration_ms": round(1e3 * seconds, 2),
                "queue_ms": round(timing.queue_ms, 2),
                "run_ms": round(timing.run_ms, 2),
                "field": field,
                "suppressed": suppressed or None,
            }
            _LOG.log(level, message or "completed", extra={"log_fields": log_fields}, exc_info=error)
