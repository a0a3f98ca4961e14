"""Replicas: a model's host, and the catalog, as Ray Serve runs them."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve

from service.catalog import NAME, Catalog
from service.host import HostArgs, ModelHost
from service.ingress.http.catalog import build_catalog_app
from service.ingress.http.model import build_app
from service.keys import KeyFile
from service.logs import setup_logs
from service.metrics import Metrics, open_metrics

_OBSERVE_EVERY = 1.0  # seconds
_LOG = logging.getLogger(__name__)


def _open_node(name: str, host: str, port: int) -> Metrics:
    """This node's page of metrics, beside the node's other replicas, and a log of this replica's own."""
    context = ray.get_runtime_context()
    session = Path(context.get_temp_dir(), context.get_session_name())
    setup_logs(file=session / "logs" / "serve" / f"requests_{name}_{os.getpid()}.log")
    return open_metrics(session / "headwaiter-metrics", port, host=host)


@serve.ingress()
class ModelReplica(ModelHost):
    def __init__(self, args: dict[str, Any]) -> None:
        given = dict(args)
        self._page = _open_node(given["name"], **given.pop("metrics"))
        parsed = HostArgs(**given)
        super().__init__(parsed, self._page.of(parsed.name))
        self._message_mb, self._needs_key = parsed.limits.message_mb, parsed.keys is not None
        self._observing: asyncio.Task[None] | None = None

    async def __serve_build_asgi_app__(self) -> FastAPI:
        self._observing = asyncio.get_running_loop().create_task(self._observe())
        return await build_app(
            self.endpoint, ready=self.is_ready, needs_key=self._needs_key, message_mb=self._message_mb
        )

    async def check_health(self) -> None:
        if not self.is_ready():
            raise RuntimeError(f"the engine of {self.name} has ended; the replica has to be replaced")

    async def _observe(self) -> None:
        while True:
            try:
                self.observe()
            except Exception:  # counting must not end, nor end anything else
                _LOG.exception("the engine could not be observed")
            await asyncio.sleep(_OBSERVE_EVERY)

    def __del__(self) -> None:
        """Called once, after the last request was answered."""
        if self._observing is not None:
            self._observing.cancel()
        self.close()
        self._page.close()


@serve.ingress()
class CatalogReplica(Catalog):
    def __init__(self, args: dict[str, Any]) -> None:
        self._page = _open_node(NAME, **args["metrics"])
        self._metrics = self._page.of(NAME)
        self._metrics.ready(True)
        keys = args.get("keys")
        super().__init__(args["models"], KeyFile(keys) if keys else None, self._metrics, local=args["local"])

    async def __serve_build_asgi_app__(self) -> FastAPI:
        return build_catalog_app(self.endpoint, names=self.names, ready=self.is_ready)

    def __del__(self) -> None:
        self._metrics.close()
        self._page.close()
