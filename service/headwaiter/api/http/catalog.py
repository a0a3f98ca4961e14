"""HTTP application that lists the served models. Ray mounts it at /, so it also handles unknown model names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Endpoint
from headwaiter.api.errors import NoReplicaError, absent_model_error, to_failure
from headwaiter.api.http.app import json_response, new_app, page
from headwaiter.api.http.error_responses import respond
from headwaiter.api.http.model import get_handler
from headwaiter.api.http.routes import LIST

_PRODUCT = "headwaiter"
_LINKS = {"models": "/models", "model": "/models/NAME", "docs": "/models/NAME/docs"}
_ALL_METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]


_PROBES = ("healthz", "readyz")


def build_catalog_app(
    endpoint: Endpoint,
    *,
    names: Callable[[], Sequence[str]],
    not_ready: Callable[[], Sequence[str]],
    alive: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """`endpoint` handles ListModels; `names` returns the configured models, `not_ready` those that do not answer."""
    models_page = page("models.html")

    def visible(request: Request) -> Sequence[str]:
        """The models that are not ready; their names are for clients with an API key."""
        return not_ready() if endpoint.is_authenticated(RequestContext.begin(LIST.name, request.headers)) else ()

    def not_ready_message(request: Request) -> str:
        listed = ", ".join(visible(request)) or f"{len(not_ready())} of {len(names())} models"
        return f"not ready: {listed}"

    async def index(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return await models_page(request)
        state = {"ready": not not_ready(), "not_ready": list(visible(request))}
        return json_response({"name": _PRODUCT, **state, "links": _LINKS})

    async def other_model(request: Request) -> Response:
        """Answers for models that are unknown, or that have no route because they are starting or stopping."""
        name = request.path_params["name"]
        if name in names() and request.path_params.get("page") in _PROBES:
            return respond(to_failure(NoReplicaError(name), ""))
        context = RequestContext.begin(LIST.name, request.headers)
        endpoint.accept(context)
        raise endpoint.failed(context, absent_model_error(name, names()))

    app = new_app(_PRODUCT, lambda: not not_ready(), alive=alive, not_ready_message=not_ready_message)
    app.add_route("/", index)
    app.add_route("/models", get_handler(endpoint, LIST))
    app.add_route("/models/", get_handler(endpoint, LIST))
    app.add_route("/models/{name}", other_model, methods=_ALL_METHODS)
    app.add_route("/models/{name}/{page:path}", other_model, methods=_ALL_METHODS)
    return app
