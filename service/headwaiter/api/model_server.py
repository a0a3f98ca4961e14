"""Serves one model in this process: loads its package and builds executor, endpoint and metrics. Independent of Ray."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from headwaiter.api.drain import Drain
from headwaiter.api.endpoint import Endpoint, RequestRecorder
from headwaiter.api.executor import ModelIdentity, RequestExecutor, TokenLatencyRecorder
from headwaiter.api.grpc_servicer import GrpcContext, Servicer, accept
from headwaiter.api.handlers import build_handlers
from headwaiter.api.health import Health, Watchers
from headwaiter.api.keys import KeyFile
from headwaiter.api.methods import Method
from headwaiter.engine.admission import AdmissionController
from headwaiter.engine.health import Cause, EngineHealth
from headwaiter.engine.settings import ModelSettings
from headwaiter.package.manifest import MANIFEST, PackageError, digest, open_package
from headwaiter.tasks.loading import load_model

_LOG = logging.getLogger(__name__)


class Metrics(RequestRecorder, TokenLatencyRecorder, Protocol):
    """Records the metrics of requests, tokens and the engine."""

    def describe(self, *, version: str, task: str, family: str, precision: str, device: str) -> None: ...

    def observe_engine(self, snapshot: dict[str, float]) -> None: ...

    def record_unhealthy(self, cause: Cause) -> None: ...

    def set_ready(self, is_ready: bool) -> None: ...

    def close(self) -> None: ...


class ModelServerArgs(BaseModel):
    """Configuration of a replica. Ray Serve restarts the replicas if any of it changes."""

    model_config = ConfigDict(extra="forbid")

    name: str
    folder: Path
    fingerprint: str | None = None
    settings: ModelSettings = ModelSettings()
    keys: Path | None = None
    local: bool = False


class ModelServer(Servicer, Health):
    def __init__(self, args: ModelServerArgs, metrics: Metrics) -> None:
        self.name, self.metrics = args.name, metrics
        self._is_health_reported = False
        self.drain, self.watchers = Drain(), Watchers()
        package = open_package(args.folder)
        if args.fingerprint not in (None, digest(package.file(MANIFEST))):
            raise PackageError(f"{args.folder} has changed since it was deployed; deploy it again.")
        limits = args.settings.limits
        self.model = load_model(package, args.settings)
        manifest, device = package.manifest, self.model.engine.session.device
        self.executor = RequestExecutor(ModelIdentity(args.name, manifest.version), metrics)
        self.endpoint = Endpoint(
            args.name,
            build_handlers(self.executor, self.model.task, self.drain),
            task_description=manifest.task_description,
            keys=KeyFile(args.keys) if args.keys is not None else None,
            recorder=metrics,
            admission=AdmissionController(
                self.model.engine,
                name=args.name,
                max_wait_seconds=limits.max_queue_wait_ms / 1e3,
                preprocessing=self.executor.preprocessing,
            ),
            message_mb=limits.message_mb,
            concurrent_mb=limits.concurrent_mb,
            local=args.local,
        )
        metrics.describe(
            version=manifest.version,
            task=manifest.task,
            family=manifest.family,
            precision=manifest.precision,
            device=device,
        )

    def accept(self, method: Method, context: GrpcContext) -> bool:
        """Authenticate and admit a call before it is dispatched; if not accepted, sets the error on `context`."""
        return accept(self.endpoint, method, context)

    def is_ready(self) -> bool:
        return bool(self.model.engine.is_healthy)

    @property
    def health(self) -> EngineHealth:
        return self.model.engine.health

    def observe(self) -> None:
        """Check the engine and record its counters; called about once per second and on close."""
        self.model.engine.check_progress()
        self._report_health()
        snapshot = self.model.counters
        queue = self.model.engine.queue
        wait = queue.estimated_wait()
        snapshot["estimated_wait_seconds"] = wait.seconds if wait is not None else 0.0
        snapshot["observed_wait_seconds"] = queue.calibration.observed_seconds
        snapshot["wait_error_seconds"] = queue.calibration.error_seconds
        if self.model.manifest.policy is not None:
            snapshot["episodes_open"] = snapshot["slots_in_use"]
        self.metrics.observe_engine(snapshot)
        self.metrics.set_ready(self.is_ready())

    def _report_health(self) -> None:
        """Log and count once why the engine is unhealthy."""
        if self.health.cause is not None and not self._is_health_reported:
            self._is_health_reported = True
            self.metrics.record_unhealthy(self.health.cause)
            _LOG.error("the engine of %s is unhealthy and must be replaced: %s", self.name, self.health.reason)

    def close(self) -> None:
        """Finish the accepted requests, then release all resources."""
        self.model.close(drain=True)
        self.executor.close()
        self.observe()
        self.metrics.close()
