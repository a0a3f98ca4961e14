"""gRPC servicer with the methods of all tasks; the endpoint rejects those that its model does not support."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from google.protobuf.message import Message
from grpc import StatusCode

from headwaiter.api.context import REQUEST_ID_HEADER, RequestContext
from headwaiter.api.endpoint import Endpoint
from headwaiter.api.errors import FailedError
from headwaiter.api.methods import METHODS, Method

_STATUS_DETAILS_HEADER = "grpc-status-details-bin"


class GrpcContext(Protocol):
    """The common subset of the contexts of gRPC and Ray Serve."""

    def invocation_metadata(self) -> Any: ...

    def peer(self) -> str: ...

    def set_code(self, code: Any) -> None: ...

    def set_details(self, details: str) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...


class Servicer:
    """Has every method of `METHODS`. Ray passes its context only to parameters named `grpc_context`."""

    endpoint: Endpoint


def _begin_request(method: Method, context: GrpcContext) -> RequestContext:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    request_context = RequestContext.begin(method.name, metadata, context.peer())
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


def reject(endpoint: Endpoint, method: Method, context: GrpcContext, rejection: Exception) -> StatusCode:
    """Reject a call before dispatch, with the same response as after it. Returns the status code, which is
    UNAUTHENTICATED instead of that of `rejection` if authentication fails."""
    request_context = _begin_request(method, context)
    try:
        endpoint.reject(request_context, rejection)
    except FailedError as error:
        _set_error(context, request_context, error)
        return error.failure.code


def _unary(method: Method) -> Any:
    async def answer(self: Servicer, request: Message, grpc_context: GrpcContext) -> Message:
        request_context = _begin_request(method, grpc_context)
        try:
            return await self.endpoint.answer(request, request_context)
        except FailedError as error:
            _set_error(grpc_context, request_context, error)
            return method.response()

    return answer


def _stream(method: Method) -> Any:
    async def stream(self: Servicer, request: Any, grpc_context: GrpcContext) -> AsyncGenerator[Message, None]:
        request_context = _begin_request(method, grpc_context)
        try:
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
