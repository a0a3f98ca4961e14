"""What every application over HTTP has: errors in one form, and two pages for whoever watches it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TypeAlias

from fastapi import FastAPI
from grpc import StatusCode
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.ingress.errors import FailedError, Failure
from service.ingress.http.encoding import dump
from service.ingress.http.failures import broken, failed, refused, respond

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
JSON = "application/json"
_PAGES = "service.ingress.http.pages"
_OWN_ONLY = "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def new_app(name: str, ready: Callable[[], bool], *, openapi_url: str | None = None) -> FastAPI:
    async def healthz(_: Request) -> Response:
        return answer({"name": name, "alive": True})

    async def readyz(_: Request) -> Response:
        if ready():
            return answer({"name": name, "ready": True})
        return respond(Failure(StatusCode.UNAVAILABLE, f"{name} is not ready"))

    app = FastAPI(
        openapi_url=openapi_url,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={FailedError: failed, HTTPException: refused, Exception: broken},
    )
    app.add_route("/healthz", healthz)
    app.add_route("/readyz", readyz)
    return app


def answer(content: object) -> Response:
    return Response(dump(content), media_type=JSON)


def page(file: str) -> Handler:
    """A page that needs nothing from elsewhere: there may be no way to there."""
    content = files(_PAGES).joinpath(file).read_text(encoding="utf-8")

    async def show(_: Request) -> Response:
        return HTMLResponse(content, headers={"content-security-policy": _OWN_ONLY})

    return show
