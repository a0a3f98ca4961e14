"""Base of all HTTP applications: uniform error responses, `/healthz` and `/readyz`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TypeAlias

from fastapi import FastAPI
from grpc import StatusCode
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headwaiter.api.errors import FailedError, Failure
from headwaiter.api.http.encoding import dump
from headwaiter.api.http.error_responses import (
    failure_response,
    http_error_response,
    respond,
    unexpected_error_response,
)

RouteHandler: TypeAlias = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
_PAGES = "headwaiter.api.http.pages"
_CONTENT_SECURITY_POLICY = "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def new_app(
    name: str,
    ready: Callable[[], bool],
    *,
    alive: Callable[[], bool],
    not_ready_message: Callable[[Request], str] | None = None,
    openapi_url: str | None = None,
) -> FastAPI:
    """`alive` is false if only a restart helps."""

    async def healthz(_: Request) -> Response:
        if alive():
            return json_response({"name": name, "alive": True})
        return respond(Failure(StatusCode.UNAVAILABLE, f"{name} has stopped answering and must be replaced"))

    async def readyz(request: Request) -> Response:
        if ready():
            return json_response({"name": name, "ready": True})
        message = f"{name} is not ready" if not_ready_message is None else not_ready_message(request)
        return respond(Failure(StatusCode.UNAVAILABLE, message))

    app = FastAPI(
        openapi_url=openapi_url,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            FailedError: failure_response,
            HTTPException: http_error_response,
            Exception: unexpected_error_response,
        },
    )
    app.add_route("/healthz", healthz)
    app.add_route("/readyz", readyz)
    return app


def json_response(content: object) -> Response:
    return Response(dump(content), media_type=JSON)


def page(file: str) -> RouteHandler:
    """Serve a page that loads no external resources, so that it works without internet access."""
    content = files(_PAGES).joinpath(file).read_text(encoding="utf-8")

    async def show(_: Request) -> Response:
        return HTMLResponse(content, headers={"content-security-policy": _CONTENT_SECURITY_POLICY})

    return show
