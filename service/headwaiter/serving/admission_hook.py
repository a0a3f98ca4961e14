"""Authenticate and admit gRPC calls before Ray dispatches them: rejections use the CPU that serves accepted calls.

At five times the capacity of a model, four of five calls are rejected (`python -m loadtest.overhead --part overload`
measures the cost). Without the hook the servicer of the replica makes the same decision.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from headwaiter.api.grpc_servicer import GrpcContext
from headwaiter.api.methods import METHODS, Method


class AcceptsCalls(Protocol):
    def accept(self, method: Method, context: GrpcContext) -> bool:
        """Whether the call is authenticated and admitted; if not, sets the error on `context`."""


_model_servers: list[AcceptsCalls] = []  # of this process: one in a replica, none in a proxy


def register(model_server: AcceptsCalls) -> None:
    """Make `model_server` the one that decides about the calls of this process."""
    _model_servers[:] = [model_server]


def install(_servicer: Any, server: Any) -> None:
    """Wrap the handlers that `server` creates from now on with the admission check.

    It must be the first of the servicer functions: Ray calls them in order with each gRPC server that it creates, in
    replicas and in proxies.
    """
    make_handler = server.service_handler_factory

    def make_handler_with_admission(service_method: str, streaming_type: Any) -> Any:
        handler = make_handler(service_method=service_method, streaming_type=streaming_type)
        method, wrap = METHODS.get(service_method.rpartition("/")[2]), _WRAPPERS.get(streaming_type.name)
        return wrap(handler, method) if wrap and method and method.needs_admission else handler

    server.service_handler_factory = make_handler_with_admission


def _is_accepted(method: Method, context: GrpcContext) -> bool:
    return all(model_server.accept(method, context) for model_server in _model_servers)


def _unary(handler: Callable[[Any, Any], Any], method: Method) -> Any:
    async def handle(request: Any, context: Any) -> bytes:
        return await handler(request, context) if _is_accepted(method, context) else b""

    return handle


def _stream(handler: Callable[[Any, Any], Any], method: Method) -> Any:
    async def handle(request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        if _is_accepted(method, context):
            async for response in handler(request, context):
                yield response

    return handle


_WRAPPERS = {"UNARY_UNARY": _unary, "UNARY_STREAM": _stream}
