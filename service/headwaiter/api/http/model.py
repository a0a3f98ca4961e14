"""HTTP application of one model, on the same endpoint as gRPC. Ray mounts it at /models/NAME."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI
from google.protobuf.message import Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Endpoint
from headwaiter.api.errors import FailedError
from headwaiter.api.http import events
from headwaiter.api.http.app import JSON, RouteHandler, new_app, page
from headwaiter.api.http.body import BodyReader
from headwaiter.api.http.disconnect import CLIENT_DISCONNECTED, run_until_disconnect
from headwaiter.api.http.encoding import encode_off_loop
from headwaiter.api.http.error_responses import respond, with_json_field_names
from headwaiter.api.http.openapi import build_openapi
from headwaiter.api.http.routes import DESCRIBE, ROUTES, Route
from headwaiter.api.methods import Method


async def build_app(
    endpoint: Endpoint,
    *,
    ready: Callable[[], bool],
    alive: Callable[[], bool] = lambda: True,
    needs_key: bool = False,
    message_mb: int = 32,
) -> FastAPI:
    """`needs_key` only affects the OpenAPI document; the endpoint enforces API keys."""
    describe: Any = endpoint.handlers[DESCRIBE.name]
    description = await describe(DESCRIBE.request(), RequestContext.begin(DESCRIBE.name, {}))
    openapi = build_openapi(endpoint, description, needs_key=needs_key)
    app = new_app(endpoint.name, ready, alive=alive, openapi_url="/openapi.json")
    app.openapi = lambda: openapi  # type: ignore[method-assign]
    describe_handler = get_handler(endpoint, DESCRIBE)
    app.add_route("/", describe_handler)
    # add_route does not accept an empty path.
    app.add_api_route("", describe_handler, methods=["GET", "HEAD"], response_model=None)
    app.add_route("/docs", page("docs.html"))
    for route in ROUTES:
        app.add_route(route.path, _post_handler(endpoint, route, message_mb), methods=["POST"])
    return app


def get_handler(endpoint: Endpoint, method: Method) -> RouteHandler:
    async def handle(request: Request) -> Response:
        context = RequestContext.begin(method.name, request.headers)
        return Response(await encode_off_loop(await endpoint.answer(method.request(), context)), media_type=JSON)

    return handle


def _post_handler(endpoint: Endpoint, route: Route, message_mb: int) -> RouteHandler:
    readers = {method: BodyReader(route.method, method, message_mb) for method in route.methods()}

    async def handle(request: Request) -> Response:
        streams = route.stream is not None and events.wants_events(request)
        method = route.stream if route.stream is not None and streams else route.method
        context = RequestContext.begin(method.name, request.headers)
        endpoint.accept(context)
        message = await _read_request(endpoint, readers[method], request, context)
        try:
            if streams:
                return await run_until_disconnect(request, events.begin(endpoint.stream(message, context)))
            response = await run_until_disconnect(request, endpoint.answer(message, context))
        except FailedError as error:
            return respond(with_json_field_names(error.failure, message))
        return Response(await encode_off_loop(response), media_type=JSON)

    return handle


async def _read_request(endpoint: Endpoint, reader: BodyReader, request: Request, context: RequestContext) -> Message:
    """Read the body of an accepted request; a failure is recorded."""
    try:
        return await reader.read(request, partial(endpoint.budget.hold, context))
    except ClientDisconnect:
        raise endpoint.failed(context, asyncio.CancelledError(CLIENT_DISCONNECTED)) from None
    except asyncio.CancelledError as error:
        endpoint.failed(context, error)
        raise
    except Exception as error:
        raise endpoint.failed(context, error) from error
