"""The gRPC server of all models. The metadata key `application` names the model, as with Ray Serve.

A call is authenticated and admitted before its message is read: every method is registered as client-streaming, which
is the same on the wire, so that gRPC leaves the reading to the handler.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

import grpc
from google.protobuf.message import Message

from headwaiter.api.errors import UnknownModelError
from headwaiter.api.grpc_messages import parse_message
from headwaiter.api.grpc_servicer import Servicer, accept, reject
from headwaiter.api.methods import METHODS, Method
from headwaiter.api.reflection import V1, V1_ALPHA, reflection_handler
from headwaiter.engine.jobs import ClosedError
from headwaiter.serving.config import CATALOG
from headwaiter.serving.errors import PreconditionError
from headwaiter.serving.single_process.health import add_health
from headwaiter.serving.single_process.metadata import application_of
from headwaiter.serving.single_process.served_models import ServedModels
from headwaiter.tasks.errors import InputError

STOPPING = "the service is stopping"
_LIST = METHODS["ListModels"]
_MB = 1 << 20
_SERVER_OPTIONS = (
    ("grpc.so_reuseport", 0),  # a second process must fail instead of receiving a part of the connections
    # gRPC's default closes connections of clients that ping an idle stream more often than every 5 minutes; ours ping
    # every 10 seconds.
    ("grpc.http2.max_ping_strikes", 0),
    # Detect clients that lost their network, and free their slots.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


def max_message_bytes(message_mb: int) -> int:
    """gRPC's limit: twice the configured one, so that moderately oversized requests get a detailed error."""
    return 2 * message_mb * _MB


async def start_grpc_server(models: ServedModels, host: str, port: int, message_mb: int) -> grpc.aio.Server:
    limit = ("grpc.max_receive_message_length", max_message_bytes(message_mb))
    server = grpc.aio.server(handlers=[ModelDispatcher(models)], options=[limit, *_SERVER_OPTIONS])
    add_health(server, models)
    server.add_generic_rpc_handlers([reflection_handler(V1), reflection_handler(V1_ALPHA)])
    try:
        server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise PreconditionError(f"gRPC cannot be served on {host}:{port}; choose another grpc.port.") from error
    await server.start()
    return server


class ModelDispatcher(grpc.GenericRpcHandler):
    """Passes each call to the servicer of its model."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._handlers = {method.path: self._handler(method) for method in METHODS.values()}

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method)

    def _handler(self, method: Method) -> Any:
        make = (
            grpc.stream_stream_rpc_method_handler if method.server_streaming else grpc.stream_unary_rpc_method_handler
        )
        respond = self._stream(method) if method.server_streaming else self._unary(method)
        return make(respond, response_serializer=method.response.SerializeToString)

    def _unary(self, method: Method) -> Any:
        async def answer(messages: AsyncIterator[bytes], context: Any) -> Message:
            with self._accepted(method, context) as servicer:
                if servicer is None:  # if the handler returned, gRPC would wait for the message of the call
                    await context.abort(context.code(), context.details())
                request = await _read(servicer, method, messages, context)
                if servicer is None or request is None:
                    return method.response()
                response: Message = await getattr(servicer, method.name)(request, context)
                return response

        return answer

    def _stream(self, method: Method) -> Any:
        async def stream(messages: AsyncIterator[bytes], context: Any) -> AsyncGenerator[Message, None]:
            with self._accepted(method, context) as servicer:
                request = await _read(servicer, method, messages, context)
                if servicer is None or request is None:
                    return
                async with aclosing(getattr(servicer, method.name)(request, context)) as responses:
                    async for response in responses:
                        yield response

        return stream

    @contextmanager
    def _accepted(self, method: Method, context: Any) -> Iterator[Servicer | None]:
        """The servicer of the call's model; None if the call is not accepted, and then `context` has the error."""
        catalog, application = self._models.catalog, application_of(context)
        if application == CATALOG or (application is None and method is _LIST):
            yield catalog if accept(catalog.endpoint, method, context) else None
            return
        try:
            model = self._models.find(application)
        except UnknownModelError as error:
            if accept(catalog.endpoint, _LIST, context):
                reject(catalog.endpoint, _LIST, context, error)
            yield None
            return
        if not self._models.is_accepting:
            reject(model.server.endpoint, method, context, ClosedError(STOPPING))
            yield None
            return
        with model.requests.one_more():
            yield model.server if model.server.accept(method, context) else None


async def _read(servicer: Servicer | None, method: Method, messages: AsyncIterator[bytes], context: Any) -> Any:
    """Read the message of an accepted call, or return the iterator of a client-streaming one."""
    if servicer is None:
        return None
    if method.client_streaming:
        return _parse_each(method, messages)
    try:
        async for message in messages:
            return parse_message(method, message)
        raise InputError(f"{method.name} needs one {method.request.DESCRIPTOR.name}; the call has none", field="")
    except InputError as error:
        reject(servicer.endpoint, method, context, error)
    return None


async def _parse_each(method: Method, messages: AsyncIterator[bytes]) -> AsyncIterator[Message]:
    async for message in messages:
        yield parse_message(method, message)
