"""The HTTP server of all models: each at /models/NAME, the catalog at every other path, as with Ray Serve."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI
from grpc import StatusCode
from starlette.types import Receive, Scope, Send

from headwaiter.api.errors import Failure
from headwaiter.api.http.error_responses import respond
from headwaiter.serving.errors import PreconditionError
from headwaiter.serving.single_process.grpc_server import STOPPING
from headwaiter.serving.single_process.http_protocol import LimitedHttpProtocol
from headwaiter.serving.single_process.served_models import ServedModels

_PREFIX = "/models/"
_PROBES = ("healthz", "readyz")
_KEEP_ALIVE_SECONDS = 90  # as Ray Serve
_STOP_SECONDS = 1  # for connections that are open although their requests have been answered
_BACKLOG = 2048


class HttpDispatcher:
    """ASGI application that passes each request to the application of its model."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self.catalog_app: FastAPI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        name, _, page = path.removeprefix(_PREFIX).partition("/")
        model = self._models.current.get(name) if path.startswith(_PREFIX) else None
        if model is None:
            await self.catalog_app(scope, receive, send)
        elif not self._models.is_accepting and page not in _PROBES:
            await respond(Failure(StatusCode.UNAVAILABLE, STOPPING))(scope, receive, send)
        else:
            with model.requests.one_more():
                await model.app({**scope, "root_path": f"{_PREFIX}{name}"}, receive, send)


class _UvicornServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process handles its signals itself."""
        yield


class HttpServer:
    def __init__(self, dispatcher: HttpDispatcher, host: str, port: int) -> None:
        try:
            self._socket = socket.create_server((host, port), backlog=_BACKLOG)
        except OSError as error:
            raise PreconditionError(
                f"HTTP cannot be served on {host}:{port} ({error.strerror}); choose another http.port."
            ) from error
        config = uvicorn.Config(
            dispatcher,
            http=LimitedHttpProtocol,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        self._server = _UvicornServer(config)
        self._task = asyncio.get_running_loop().create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task
        self._socket.close()
