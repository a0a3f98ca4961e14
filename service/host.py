"""A model behind its methods, in this process: opened, limited, counted. Knows nothing of Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from grpc import StatusCode
from pydantic import BaseModel, ConfigDict

from service.config import Batch, Limits
from service.ingress.desk import Desk, TokenTimes, Who
from service.ingress.endpoint import Endpoint, Recorder
from service.ingress.grpc import Context, Servicer, refuse
from service.ingress.health import Health
from service.ingress.methods import Method
from service.ingress.verbs import open_verbs
from service.keys import KeyFile
from service.load import LoadGauge
from service.model import Options, open_with
from service.package import MANIFEST, PackageError, digest, open_package


class Metrics(Recorder, TokenTimes, Protocol):
    """Where a model's calls, tokens and engine are counted."""

    def describe(self, *, version: str, task: str, family: str, precision: str, device: str) -> None: ...

    def observe_engine(self, snapshot: dict[str, float]) -> None: ...

    def ready(self, is_ready: bool) -> None: ...

    def close(self) -> None: ...


class HostArgs(BaseModel):
    """All that a replica must know; a change of any of it makes new replicas."""

    model_config = ConfigDict(extra="forbid")

    name: str
    folder: Path
    fingerprint: str | None = None
    device: str = "auto"
    threads: int | None = None
    rows: int = 64
    batch: Batch = Batch()
    limits: Limits = Limits()
    keys: Path | None = None
    local: bool = False


class ModelHost(Servicer, Health):
    def __init__(self, args: HostArgs, metrics: Metrics) -> None:
        self.name, self.metrics = args.name, metrics
        package = open_package(args.folder)
        if args.fingerprint not in (None, digest(package.file(MANIFEST))):
            raise PackageError(f"{args.folder} is not what was deployed any more; deploy again to serve what is there.")
        limits = args.limits
        options = Options(
            device=args.device,
            threads=args.threads,
            rows=args.rows,
            batch_tokens=args.batch.tokens,
            batch_pixels=args.batch.pixels,
            beams=limits.beams,
            new_tokens=limits.new_tokens,
            text=limits.text,
            pixels=limits.pixels,
            images=limits.images,
        )
        self.model: Any = open_with(package, options)
        manifest, device = package.manifest, self.model.engine.session.device
        self.desk = Desk(Who(args.name, manifest.version), self.model.engine, limits.model_dump(), metrics)
        self.endpoint = Endpoint(
            args.name,
            open_verbs(self.desk, self.model),
            does=manifest.does,
            keys=KeyFile(args.keys) if args.keys is not None else None,
            recorder=metrics,
            message_mb=limits.message_mb,
            local=args.local,
        )
        self.load = LoadGauge(self.model.engine)
        metrics.describe(
            version=manifest.version,
            task=manifest.task,
            family=manifest.family,
            precision=manifest.precision,
            device=device,
        )

    def turns_away(self, method: Method, context: Context) -> bool:
        """Whether there is no place in line for a call of it; if so, the caller has been told."""
        refusal = self.desk.refusal() if method.name in self.endpoint.verbs else None
        if refusal is None:
            return False
        if refuse(self.endpoint, method, context, refusal) is StatusCode.RESOURCE_EXHAUSTED:
            self.desk.count_refused()
        return True

    def is_ready(self) -> bool:
        return bool(self.model.engine.is_alive)

    def observe(self) -> None:
        """Hands the engine's meters on; called every second or so, and at the end."""
        snapshot = self.model.meters
        snapshot["estimated_wait_seconds"] = self.model.engine.estimated_wait() or 0.0
        if self.model.manifest.policy is not None:
            snapshot["episodes_open"] = snapshot["rows_in_use"]
        self.metrics.observe_engine(snapshot)
        self.metrics.ready(self.is_ready())

    def close(self) -> None:
        """Finishes what was accepted."""
        self.model.close(drain=True)
        self.desk.close()
        self.observe()
        self.metrics.close()
