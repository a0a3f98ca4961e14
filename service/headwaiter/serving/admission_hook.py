"""Reject overloaded gRPC calls before Ray dispatches them, because rejections use the CPU that serves accepted calls.

At five times the capacity of a model, four of five calls are rejected (`python -m loadtest.overhead --part overload`
measures the cost). Calls that are not rejected here, and all HTTP requests, still pass the admission control of
`RequestExecutor`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from headwaiter.api.grpc_servicer import GrpcContext
from headwaiter.api.methods import METHODS, Method


class RejectsOverload(Protocol):
    def reject_if_overloaded(self, method: Method, context: GrpcContext) -> bool:
        """Whether the request is rejected; if so, sets the error on `context`."""


_model_servers: list[RejectsOverload] = []  # of this process: one in a replica, none in a proxy


def register(model_server: RejectsOverload) -> None:
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


def _is_rejected(method: Method, context: GrpcContext) -> bool:
    return any(model_server.reject_if_overloaded(method, context) for model_server in _model_servers)


def _unary(handler: Callable[[Any, Any], Any], method: Method) -> Any:
    async def handle(request: Any, context: Any) -> bytes:
        return b"" if _is_rejected(method, context) else await handler(request, context)

    return handle


def _stream(handler: Callable[[Any, Any], Any], method: Method) -> Any:
    async def handle(request: Any, context: Any) -> AsyncGenerator[bytes, None]:
        if not _is_rejected(method, context):
            async for response in handler(request, context):
                yield response

    return handle


_WRAPPERS = {"UNARY_UNARY": _unary, "UNARY_STREAM": _stream}
