"""One model over HTTP, on the same front as gRPC. Paths are relative: Ray mounts this at /models/NAME."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from service.ingress.calls import Call
from service.ingress.endpoint import Endpoint
from service.ingress.errors import FailedError
from service.ingress.http import events
from service.ingress.http.app import JSON, Handler, new_app, page
from service.ingress.http.body import BodyReader
from service.ingress.http.encoding import encoded
from service.ingress.http.failures import in_json_words, respond
from service.ingress.http.openapi import document
from service.ingress.http.presence import GONE, while_present
from service.ingress.http.routes import DESCRIBE, ROUTES, Route
from service.ingress.methods import Method


async def build_app(
    endpoint: Endpoint, *, ready: Callable[[], bool], needs_key: bool = False, message_mb: int = 32
) -> FastAPI:
    """`needs_key` only tells readers of the documentation; the endpoint is who asks for keys."""
    describe: Any = endpoint.verbs[DESCRIBE.name]
    about = await describe(DESCRIBE.request(), Call.begin(DESCRIBE.name, {}))
    openapi = document(endpoint, about, needs_key=needs_key)
    app = new_app(endpoint.name, ready, openapi_url="/openapi.json")
    app.openapi = lambda: openapi  # type: ignore[method-assign]
    front = without_body(endpoint, DESCRIBE)
    app.add_route("/", front)
    app.add_api_route("", front, methods=["GET", "HEAD"], response_model=None)  # add_route takes no empty path
    app.add_route("/docs", page("docs.html"))
    for route in ROUTES:
        app.add_route(route.path, _with_body(endpoint, route, message_mb), methods=["POST"])
    return app


def without_body(endpoint: Endpoint, method: Method) -> Handler:
    async def handle(request: Request) -> Response:
        call = Call.begin(method.name, request.headers)
        return Response(await encoded(await endpoint.answer(method.request(), call)), media_type=JSON)

    return handle


def _with_body(endpoint: Endpoint, route: Route, message_mb: int) -> Handler:
    readers = {method: BodyReader(route.method, method, message_mb) for method in route.methods()}

    async def handle(request: Request) -> Response:
        streams = route.stream is not None and events.wants_events(request)
        method = route.stream if route.stream is not None and streams else route.method
        call = Call.begin(method.name, request.headers)
        if method.name not in endpoint.verbs:
            await endpoint.answer(method.request(), call)  # which says so, whatever the body is
        message = await _received(endpoint, readers[method], request, call)
        try:
            if streams:
                return await while_present(request, events.begin(endpoint.stream(message, call)))
            response = await while_present(request, endpoint.answer(message, call))
        except FailedError as error:
            return respond(in_json_words(error.failure, message))
        return Response(await encoded(response), media_type=JSON)

    return handle


async def _received(endpoint: Endpoint, reader: BodyReader, request: Request, call: Call) -> Message:
    """Whoever has no key does not get as far as having a body read."""
    try:
        endpoint.demand_key(call.bearer)
        return await reader.read(request)
    except ClientDisconnect:
        raise endpoint.failed(call, asyncio.CancelledError(GONE)) from None
    except asyncio.CancelledError as error:
        endpoint.failed(call, error)
        raise
    except Exception as error:
        raise endpoint.failed(call, error) from error
