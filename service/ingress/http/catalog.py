"""The list of models over HTTP. Ray mounts this at /, so it also answers for whatever is not there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from service.ingress.calls import Call
from service.ingress.endpoint import Endpoint
from service.ingress.errors import UnknownModelError
from service.ingress.http.app import answer, new_app, page
from service.ingress.http.model import without_body
from service.ingress.http.routes import LIST

_PRODUCT = "headwaiter"
_LINKS = {"models": "/models", "model": "/models/NAME", "docs": "/models/NAME/docs"}
_ANY = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]


def build_catalog_app(
    endpoint: Endpoint, *, names: Callable[[], Awaitable[Sequence[str]]], ready: Callable[[], bool]
) -> FastAPI:
    """`endpoint` has ListModels; `names` are those of the models that are served, for whoever asks for another."""
    shown = page("models.html")

    async def index(request: Request) -> Response:
        wants_page = "text/html" in request.headers.get("accept", "")
        return await shown(request) if wants_page else answer({"name": _PRODUCT, "links": _LINKS})

    async def unknown(request: Request) -> Response:
        call = Call.begin(LIST.name, request.headers)
        try:
            endpoint.demand_key(call.bearer)
            known = ", ".join(await names()) or "none yet"
            raise UnknownModelError(f"{request.path_params['name']} is not a model; there are {known}")
        except Exception as error:
            raise endpoint.failed(call, error) from error

    app = new_app(_PRODUCT, ready)
    app.add_route("/", index)
    app.add_route("/models", without_body(endpoint, LIST))
    app.add_route("/models/", without_body(endpoint, LIST))
    app.add_route("/models/{name}", unknown, methods=_ANY)
    app.add_route("/models/{name}/{page:path}", unknown, methods=_ANY)
    return app
