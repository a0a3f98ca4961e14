"""Replicas: a model's host, and the catalog, as Ray Serve runs them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray
from fastapi import FastAPI
from ray import serve

from service.catalog import NAME, Catalog, replicas_wanted
from service.host import HostArgs, ModelHost
from service.ingress import door
from service.ingress.http.catalog import build_catalog_app
from service.ingress.http.model import build_app
from service.keys import KeyFile
from service.logs import setup_logs
from service.metrics import Metrics, open_metrics

_OBSERVE_SECONDS = 1.0
_COUNT_SECONDS = 5.0
_LOG = logging.getLogger(__name__)


def _open_node(name: str, host: str, port: int) -> Metrics:
    """This node's page of metrics, beside the node's other replicas, and a log of this replica's own."""
    context = ray.get_runtime_context()
    session = Path(context.get_temp_dir(), context.get_session_name())
    setup_logs(file=session / "logs" / "serve" / f"requests_{name}_{os.getpid()}.log")
    return open_metrics(session / "headwaiter-metrics", port, host=host)


async def _keep_observing(observe: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        try:
            await observe()
        except Exception:  # counting must not end, nor end anything else
            _LOG.exception("what goes on could not be observed")
        await asyncio.sleep(seconds)


@serve.ingress()
class ModelReplica(ModelHost):
    def __init__(self, args: dict[str, Any]) -> None:
        given = dict(args)
        self._page = _open_node(given["name"], **given.pop("metrics"))
        parsed = HostArgs(**given)
        super().__init__(parsed, self._page.of(parsed.name))
        self._message_mb, self._needs_key = parsed.limits.message_mb, parsed.keys is not None
        self._observing: asyncio.Task[None] | None = None
        door.stand_for(self)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        observing = _keep_observing(self._observe, _OBSERVE_SECONDS)
        self._observing = asyncio.get_running_loop().create_task(observing)
        return await build_app(
            self.endpoint, ready=self.is_ready, needs_key=self._needs_key, message_mb=self._message_mb
        )

    async def check_health(self) -> None:
        if not self.is_ready():
            raise RuntimeError(f"the engine of {self.name} has ended; the replica has to be replaced")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Asked by Serve every `scaling.REPORT_SECONDS` where the model is autoscaled."""
        return self.load.read()

    async def _observe(self) -> None:
        self.observe()

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
        self._of_models = {each["name"]: self._page.of(each["name"]) for each in args["models"]}
        self._observing: asyncio.Task[None] | None = None
        keys = args.get("keys")
        super().__init__(args["models"], KeyFile(keys) if keys else None, self._metrics, local=args["local"])

    async def __serve_build_asgi_app__(self) -> FastAPI:
        observing = _keep_observing(self._observe, _COUNT_SECONDS)
        self._observing = asyncio.get_running_loop().create_task(observing)
        return build_catalog_app(self.endpoint, names=self.names, ready=self.is_ready)

    async def _observe(self) -> None:
        wanted = await asyncio.to_thread(replicas_wanted)
        for name, metrics in self._of_models.items():
            metrics.wanted(wanted.get(name, 0))

    def __del__(self) -> None:
        if self._observing is not None:
            self._observing.cancel()
        for metrics in (self._metrics, *self._of_models.values()):
            metrics.close()
        self._page.close()
