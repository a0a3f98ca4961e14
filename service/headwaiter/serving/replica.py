"""Ray Serve deployments of a model server and of the catalog."""

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

from headwaiter.api.http.catalog import build_catalog_app
from headwaiter.api.http.model import build_app
from headwaiter.api.keys import KeyFile
from headwaiter.api.logs import configure_logging
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.serving import ray_compat
from headwaiter.serving.catalog import NAME, Catalog, read_models
from headwaiter.serving.cluster import describe_error
from headwaiter.serving.metrics import MetricsExporter, open_metrics
from headwaiter.serving.replica_load import LoadGauge

_OBSERVE_SECONDS = 1.0
_REPLICA_COUNT_SECONDS = 1.0
_LOG = logging.getLogger(__name__)


def _open_node_metrics(name: str, host: str, port: int) -> MetricsExporter:
    """Open the node's shared metrics endpoint and this replica's own log file."""
    context = ray.get_runtime_context()
    session = Path(context.get_temp_dir(), context.get_session_name())
    configure_logging(file=session / "logs" / "serve" / f"requests_{name}_{os.getpid()}.log")
    return open_metrics(session / "headwaiter-metrics", port, host=host)


async def _observe_periodically(observe: Callable[[], Awaitable[None]], seconds: float) -> None:
    while True:
        try:
            await observe()
        except Exception:  # a failed observation must not stop later ones
            _LOG.exception("metrics could not be observed")
        await asyncio.sleep(seconds)


@serve.ingress()
class ModelReplica(ModelServer):
    def __init__(self, args: dict[str, Any]) -> None:
        self._observe_task: asyncio.Task[None] | None = None
        self._is_open = False
        self._metrics_exporter = _open_node_metrics(args["name"], **args["metrics"])
        metrics = self._metrics_exporter.for_model(args["name"])
        try:
            parsed = ModelServerArgs(**{name: value for name, value in args.items() if name != "metrics"})
            super().__init__(parsed, metrics)
        except BaseException as error:
            metrics.record_start_failure()
            _LOG.error("%s did not start: %s", args["name"], describe_error(error))
            self._metrics_exporter.close()
            raise
        self._is_open = True
        self._message_mb, self._needs_key = parsed.settings.limits.message_mb, parsed.keys is not None
        self._load = LoadGauge(self.model.engine)
        ray_compat.register_model_server(self)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        observation = _observe_periodically(self._observe, _OBSERVE_SECONDS)
        self._observe_task = asyncio.get_running_loop().create_task(observation)
        return await build_app(
            self.endpoint,
            ready=self.is_ready,
            alive=self.is_ready,
            needs_key=self._needs_key,
            message_mb=self._message_mb,
        )

    async def check_health(self) -> None:
        if not self.is_ready():
            reason = self.health.reason or "it has stopped"
            raise RuntimeError(f"the engine of {self.name} is unhealthy and must be replaced: {reason}")

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve every `autoscaling.REPORT_SECONDS` if the model is autoscaled."""
        return self._load.read()

    async def _observe(self) -> None:
        if ray_compat.is_replica_stopping():
            self.drain.begin()
        self.observe()

    def __del__(self) -> None:
        """Called by Serve once, after the last request has finished, and by Python if the model did not start."""
        if not self._is_open:
            return
        if self._observe_task is not None:
            self._observe_task.cancel()
        self.close()
        self._metrics_exporter.close()


@serve.ingress()
class CatalogReplica(Catalog):
    def __init__(self, args: dict[str, Any]) -> None:
        self._metrics_exporter = _open_node_metrics(NAME, **args["metrics"])
        self._metrics = self._metrics_exporter.for_model(NAME)
        self._metrics.set_ready(True)
        self._model_metrics = {
            name: self._metrics_exporter.for_model(name) for name in (model["name"] for model in args["models"])
        }
        self._observe_task: asyncio.Task[None] | None = None
        keys = args.get("keys")
        super().__init__(args["models"], KeyFile(keys) if keys else None, self._metrics, local=args["local"])
        ray_compat.register_model_server(self)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        observation = _observe_periodically(self._observe, _REPLICA_COUNT_SECONDS)
        self._observe_task = asyncio.get_running_loop().create_task(observation)
        return build_catalog_app(self.endpoint, names=self.names, not_ready=self.not_ready)

    async def _observe(self) -> None:
        if ray_compat.is_replica_stopping():
            self.drain.begin()
        models = await asyncio.to_thread(read_models)
        self.update(models)
        desired = {model.name: model.desired_replicas or 0 for model in models}
        for name, metrics in self._model_metrics.items():
            metrics.set_desired_replicas(desired.get(name, 0))

    def __del__(self) -> None:
        if self._observe_task is not None:
            self._observe_task.cancel()
        for metrics in (self._metrics, *self._model_metrics.values()):
            metrics.close()
        self._metrics_exporter.close()
