"""Schema of serve.yaml: sections, defaults and the rules that concern several keys."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from headwaiter.engine.settings import Count, ModelSettings, Section
from headwaiter.package.manifest import NAME_PATTERN, Precision

CATALOG = "catalog"
CATALOG_MESSAGE_MB = 1
LOOPBACK: Literal["127.0.0.1"] = "127.0.0.1"


def _int_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _resolve_localhost(value: Any) -> Any:
    return LOOPBACK if value == "localhost" else value


Port = Annotated[int, Field(ge=1, le=65535)]
Version = Annotated[str, BeforeValidator(_int_to_text), Field(pattern=r"^[0-9]+$")]
# Ray's HAProxy connects to its replicas over loopback, so they must listen there or on every interface.
Host = Annotated[Literal["127.0.0.1", "0.0.0.0"], BeforeValidator(_resolve_localhost)]


class Grpc(Section):
    port: Port = 9000
    """gRPC port; the bind address is `http.host`."""


class Http(Section):
    host: Host = LOOPBACK
    """Bind address of HTTP, gRPC and metrics: 127.0.0.1 (this machine only) or 0.0.0.0 (every interface)."""
    port: Port = 8000
    """HTTP port."""


class Metrics(Section):
    port: Port = 8080
    """Prometheus metrics port on every node."""


class Auth(Section):
    keys: str | None = None
    """File of hashed API keys, relative to this file; no authentication if unset."""


class Resources(Section):
    """Resources of one replica."""

    cpus: float = Field(default=1, gt=0)
    """CPU cores per replica; fractions are allowed."""
    gpus: float = Field(default=0, ge=0)
    """GPUs per replica; fractions below 1 are allowed."""

    @model_validator(mode="after")
    def _check_whole_gpus(self) -> Self:
        if self.gpus > 1 and not self.gpus.is_integer():
            raise ValueError(f"sets gpus to {self.gpus}; above 1 it must be a whole number")
        return self


class Autoscale(Section):
    """Bounds and target of the autoscaler."""

    min: int = Field(default=1, ge=0)
    """Minimum replicas; with 0 an idle model scales to zero and starts again on the next request."""
    max: Count
    """Maximum replicas."""
    target: float = Field(default=0.7, gt=0, le=1)
    """Target utilisation per replica, as a fraction."""
    scale_down_delay_s: float = Field(default=300, gt=0)
    """Scale-down delay in seconds."""

    @model_validator(mode="after")
    def _check_min_max(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"sets min to {self.min} and max to {self.max}; min must not exceed max")
        return self


class Model(ModelSettings):
    path: str
    """Package directory, relative to this file."""
    version: Version | None = None
    """Package version; the newest if unset."""
    precision: Precision | None = None
    """Weight precision: fp32, fp16 or int8; if unset or not exported, fp32 or else the only one exported."""
    resources: Resources = Resources()
    replicas: Count | None = None
    """Fixed number of replicas (1 if neither this nor `autoscale` is set)."""
    autoscale: Autoscale | None = None
    optional: bool = False
    """Skip the model while its package directory does not exist, instead of failing."""

    @property
    def initial_replicas(self) -> int:
        """Replicas at deployment; at least one, so that loading the model is verified."""
        return max(1, self.autoscale.min) if self.autoscale else self.replicas or 1

    def replica_settings(self) -> ModelSettings:
        """The settings of one replica, with everything that depends on its resources resolved."""
        return ModelSettings(
            device=self.device if self.resources.gpus else "cpu",
            threads=self.threads or math.ceil(self.resources.cpus),
            max_sequences=self.max_sequences,
            run_timeout_s=self.run_timeout_s,
            batch=self.batch,
            limits=self.limits.model_copy(update={"num_beams": min(self.limits.num_beams, self.max_sequences)}),
        )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.replicas is not None and self.autoscale is not None:
            raise ValueError("sets both replicas and autoscale; remove one of them")
        if self.device == "cuda" and self.resources.gpus == 0:
            raise ValueError("sets device to cuda and resources.gpus to 0; set resources.gpus above 0")
        if "num_beams" in self.limits.model_fields_set and self.limits.num_beams > self.max_sequences:
            raise ValueError(
                f"sets limits.num_beams to {self.limits.num_beams} and max_sequences to {self.max_sequences}; "
                "num_beams must not exceed max_sequences"
            )
        return self


class Config(Section):
    grpc: Grpc = Grpc()
    http: Http = Http()
    metrics: Metrics = Metrics()
    auth: Auth = Auth()
    models: dict[str, Model]

    @property
    def ports(self) -> dict[str, int]:
        return {"grpc.port": self.grpc.port, "http.port": self.http.port, "metrics.port": self.metrics.port}

    @model_validator(mode="after")
    def _check_ports_differ(self) -> Self:
        for (first, first_port), (second, second_port) in combinations(self.ports.items(), 2):
            if first_port == second_port:
                raise ValueError(f"{first} and {second} are both {first_port}; the ports must differ")
        return self

    @model_validator(mode="after")
    def _check_model_names(self) -> Self:
        if not self.models:
            raise ValueError("models is empty; list at least one model")
        for name in self.models:
            if name == CATALOG:
                raise ValueError(f"models.{name} is a reserved name; choose another")
            if not NAME_PATTERN.fullmatch(name):
                raise ValueError(
                    f"models.{name} is not a valid model name; use lowercase letters, digits, dots and hyphens"
                )
        return self
