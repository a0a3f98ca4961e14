"""The methods of all tasks as gRPC servicer methods: one class answers for whatever its model does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Protocol

from google.protobuf.message import Message
from grpc import StatusCode

from service.ingress.calls import REQUEST_ID, Call
from service.ingress.endpoint import Endpoint
from service.ingress.errors import FailedError
from service.ingress.methods import METHODS, Method

_DETAILS = "grpc-status-details-bin"


class Context(Protocol):
    """What gRPC's own context and Ray's have in common."""

    def invocation_metadata(self) -> Any: ...

    def peer(self) -> str: ...

    def set_code(self, code: Any) -> None: ...

    def set_details(self, details: str) -> None: ...

    def set_trailing_metadata(self, trailing_metadata: Any) -> None: ...


class Servicer:
    """Has every method of `METHODS`. Ray hands over its context only to a parameter of the name `grpc_context`."""

    endpoint: Endpoint


def _begin(method: Method, context: Context) -> Call:
    metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
    call = Call.begin(method.name, metadata, context.peer())
    context.set_trailing_metadata([(REQUEST_ID, call.request_id)])
    return call


def _fail(context: Context, call: Call, error: FailedError) -> None:
    """Set, not raised: Ray would drop the trailers of a call that raised."""
    failure = error.failure
    context.set_code(failure.code)
    context.set_details(failure.message)
    context.set_trailing_metadata([(REQUEST_ID, call.request_id), (_DETAILS, failure.details())])


def refuse(endpoint: Endpoint, method: Method, context: Context, refusal: Exception) -> StatusCode:
    """In the words that the call would have got inside; the code is another's where the caller may not even ask."""
    call = _begin(method, context)
    try:
        endpoint.refuse(call, refusal)
    except FailedError as error:
        _fail(context, call, error)
        return error.failure.code


def _unary(method: Method) -> Any:
    async def answer(self: Servicer, request: Message, grpc_context: Context) -> Message:
        call = _begin(method, grpc_context)
        try:
            return await self.endpoint.answer(request, call)
        except FailedError as error:
            _fail(grpc_context, call, error)
            return method.response()

    return answer


def _stream(method: Method) -> Any:
    async def stream(self: Servicer, request: Any, grpc_context: Context) -> AsyncGenerator[Message, None]:
        call = _begin(method, grpc_context)
        try:
            async with aclosing(self.endpoint.stream(request, call)) as responses:
                async for response in responses:
                    yield response
        except FailedError as error:
            _fail(grpc_context, call, error)

    return stream


for _method in METHODS.values():
    _handler = (_stream if _method.gives_stream else _unary)(_method)
    _handler.__name__ = _method.name
    _handler.__qualname__ = f"{Servicer.__name__}.{_method.name}"
    setattr(Servicer, _method.name, _handler)
