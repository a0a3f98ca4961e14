"""One model of the process: its server, its HTTP application and its open requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from headwaiter.api.http.model import build_app
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.package.manifest import MANIFEST, digest
from headwaiter.serving.config import Service
from headwaiter.serving.metrics import ModelMetrics

_LOG = logging.getLogger(__name__)


def model_args(service: Service, name: str) -> ModelServerArgs:
    """Everything that the model depends on: if it is equal after a reload, the open model is kept."""
    package = service.packages[name]
    return ModelServerArgs(
        name=name,
        folder=package.folder.resolve(),
        fingerprint=digest(package.file(MANIFEST)),
        settings=service.config.models[name].replica_settings(),
        keys=service.keys,
        local=service.is_local,
    )


class OpenRequests:
    """Counts the requests that are being answered."""

    def __init__(self) -> None:
        self._count = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self._count += 1
        self._none_open.clear()
        try:
            yield
        finally:
            self._count -= 1
            if self._count == 0:
                self._none_open.set()

    async def wait_until_none(self) -> None:
        await self._none_open.wait()


class ServedModel:
    def __init__(self, args: ModelServerArgs, server: ModelServer, app: FastAPI) -> None:
        self.args, self.server, self.app = args, server, app
        self.requests = OpenRequests()

    @classmethod
    async def open(cls, args: ModelServerArgs, metrics: ModelMetrics, is_accepting: Callable[[], bool]) -> ServedModel:
        """Load the model in a thread. `is_accepting` is false while the process stops."""
        try:
            server = await asyncio.to_thread(ModelServer, args, metrics)
        except BaseException:
            metrics.close()
            raise
        try:
            metrics.set_desired_replicas(1)
            app = await build_app(
                server.endpoint,
                ready=lambda: server.is_ready() and is_accepting(),
                alive=server.is_ready,
                needs_key=args.keys is not None,
                message_mb=args.settings.limits.message_mb,
            )
        except BaseException:
            server.close()
            raise
        return cls(args, server, app)

    def is_current(self, args: ModelServerArgs) -> bool:
        """Whether the model can be kept if it is to be served with `args`."""
        return self.args == args and self.server.is_ready()

    async def close(self, seconds: float) -> None:
        """Wait up to `seconds` for the open requests, fail those that remain, and release the model."""
        self.server.drain.begin()
        try:
            async with asyncio.timeout(seconds):
                await self.requests.wait_until_none()
        except TimeoutError:
            _LOG.warning("requests of %s did not finish within %g s", self.args.name, seconds)
            await asyncio.to_thread(self.server.model.close, drain=False)
        await asyncio.to_thread(self.server.close)
