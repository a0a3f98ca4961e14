"""gRPC servicer with the methods of all tasks; the endpoint rejects those that its model does not support."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from google.protobuf.message import Message

from headwaiter.api.context import REQUEST_ID_HEADER, RequestContext
from headwaiter.api.endpoint import Endpoint
from headwaiter.api.errors import FailedError
from headwaiter.api.grpc_messages import parse_message
from headwaiter.api.methods import METHODS, Method
from headwaiter.tasks.errors import InputError

_STATUS_DETAILS_HEADER = "grpc-status-details-bin"


class GrpcContext(Protocol):
    """The common subset of the contexts of gRPC and Ray Serve."""

    def invocation_metadata(self) -> Any: ...

    def peer(self) -> str | None:
        """Address of the client; None if only the metadata of the call is known yet."""

    def set_code(self, code: Any) -> None: ...

    def set_details(self, details: str) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...


class Servicer:
    """Has every method of `METHODS`. Ray passes its context only to parameters named `grpc_context`."""

    endpoint: Endpoint


_accepted_request: ContextVar[RequestContext | None] = ContextVar("accepted_request", default=None)


def _begin_request(method: Method, context: GrpcContext) -> RequestContext:
    """The context of a call: the one that `accept` has made in the same asyncio context, or a new one."""
    request_context = _accepted_request.get()
    if request_context is None or request_context.method != method.name:
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        request_context = RequestContext.begin(method.name, metadata)
    request_context.peer = context.peer()
    context.set_trailing_metadata([(REQUEST_ID_HEADER, request_context.request_id)])
    return request_context


def _set_error(context: GrpcContext, request_context: RequestContext, error: FailedError) -> None:
    """Set the status on the context instead of raising, because Ray drops the trailers of calls that raise."""
    failure = error.failure
    context.set_code(failure.code)
    context.set_details(failure.message)
    context.set_trailing_metadata(
        [(REQUEST_ID_HEADER, request_context.request_id), (_STATUS_DETAILS_HEADER, failure.details())]
    )


def accept(endpoint: Endpoint, method: Method, context: GrpcContext) -> bool:
    """Authenticate and admit a call before it is dispatched. If it is not accepted, set the error on `context`.

    The servicer does not repeat the decision if it runs in the same asyncio context.
    """
    request_context = _begin_request(method, context)
    try:
        endpoint.accept(request_context)
    except FailedError as error:
        _set_error(context, request_context, error)
        return False
    _accepted_request.set(request_context)
    return True


def reject(endpoint: Endpoint, method: Method, context: GrpcContext, error: Exception) -> None:
    """Record a call that is rejected before it is dispatched, and set the error on `context`."""
    request_context = _begin_request(method, context)
    _set_error(context, request_context, endpoint.failed(request_context, error))


@dataclass(frozen=True, slots=True)
class MalformedMessage:
    """Takes the place of a message that could not be parsed, so that the endpoint can reject the call."""

    error: InputError


@cache  # one per method, not one per call
def parse_or_malformed(method: Method) -> Callable[[bytes], Message | MalformedMessage]:
    """A deserializer that does not raise: gRPC would answer UNKNOWN, with the name of the exception."""

    def parse(content: bytes) -> Message | MalformedMessage:
        try:
            return parse_message(method, content)
        except InputError as error:
            return MalformedMessage(error)

    return parse


def _check_message(endpoint: Endpoint, request: object, request_context: RequestContext) -> None:
    if isinstance(request, MalformedMessage):
        endpoint.accept(request_context)
        raise endpoint.failed(request_context, request.error)


async def _checked_messages(requests: AsyncIterator[Message | MalformedMessage]) -> AsyncIterator[Message]:
    async for request in requests:
        if isinstance(request, MalformedMessage):
            raise request.error
        yield request


def _unary(method: Method) -> Any:
    async def answer(self: Servicer, request: Message, grpc_context: GrpcContext) -> Message:
        request_context = _begin_request(method, grpc_context)
        try:
            _check_message(self.endpoint, request, request_context)
            return await self.endpoint.answer(request, request_context)
        except FailedError as error:
            _set_error(grpc_context, request_context, error)
            return method.response()

    return answer


def _stream(method: Method) -> Any:
    async def stream(self: Servicer, request: Any, grpc_context: GrpcContext) -> AsyncGenerator[Message, None]:
        request_context = _begin_request(method, grpc_context)
        try:
            _check_message(self.endpoint, request, request_context)
            if method.client_streaming:
                request = _checked_messages(request)
            async with aclosing(self.endpoint.stream(request, request_context)) as responses:
                async for response in responses:
                    yield response
        except FailedError as error:
            _set_error(grpc_context, request_context, error)

    return stream


for _method in METHODS.values():
    _handler = (_stream if _method.server_streaming else _unary)(_method)
    _handler.__name__ = _method.name
    _handler.__qualname__ = f"{Servicer.__name__}.{_method.name}"
    setattr(Servicer, _method.name, _handler)
