"""HTTP application that lists the served models. Ray mounts it at /, so it also handles unknown model names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Endpoint
from headwaiter.api.errors import UnknownModelError
from headwaiter.api.http.app import json_response, new_app, page
from headwaiter.api.http.model import get_handler
from headwaiter.api.http.routes import LIST

_PRODUCT = "headwaiter"
_LINKS = {"models": "/models", "model": "/models/NAME", "docs": "/models/NAME/docs"}
_ALL_METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]


def build_catalog_app(
    endpoint: Endpoint,
    *,
    names: Callable[[], Awaitable[Sequence[str]]],
    ready: Callable[[], bool],
    alive: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """`endpoint` handles ListModels; `names` returns the served models, for the error about an unknown one."""
    models_page = page("models.html")

    async def index(request: Request) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        return await models_page(request) if wants_page else json_response({"name": _PRODUCT, "links": _LINKS})

    async def unknown(request: Request) -> Response:
        context = RequestContext.begin(LIST.name, request.headers)
        endpoint.accept(context)
        raise endpoint.failed(context, UnknownModelError(request.path_params["name"], await names()))

    app = new_app(_PRODUCT, ready, alive=alive)
    app.add_route("/", index)
    app.add_route("/models", get_handler(endpoint, LIST))
    app.add_route("/models/", get_handler(endpoint, LIST))
    app.add_route("/models/{name}", unknown, methods=_ALL_METHODS)
    app.add_route("/models/{name}/{page:path}", unknown, methods=_ALL_METHODS)
    return app
