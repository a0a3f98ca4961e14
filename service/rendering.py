"""serve.yaml as Ray Serve's own declarative config: one application per model, and the catalog.

Ray replaces an application's replicas when its args or resources change and leaves the others alone. So everything that
must reach a replica is in its model's args, and nothing else is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service import scaling
from service.config import CATALOG, Model, Service
from service.package import MANIFEST, Package, digest

TASK_SERVICES = ("Translation", "Captioning", "Classification", "Detection", "Policy", "Generation", "Models")
SERVICERS = [
    "service.ingress.door.guard",  # first: it looks after those that follow
    *(f"headwaiter.v1.{name.lower()}_pb2_grpc.add_{name}Servicer_to_server" for name in TASK_SERVICES),
    "grpc_health.v1.health_pb2_grpc.add_HealthServicer_to_server",
]
ENVIRONMENT = {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
"""What every node's `ray start` needs around it: HAProxy in front, requests straight to the replicas."""
Rendered = dict[str, Any]
_MB = 1 << 20
# Requests are refused by our own code, in our own words: Serve's limits stay out of its way.
_ADMISSION = {"max_ongoing_requests": 10_000, "max_queued_requests": -1}
_LIFE = {
    "health_check_period_s": 5,
    "health_check_timeout_s": 30,
    "graceful_shutdown_wait_loop_s": 0.5,
    "graceful_shutdown_timeout_s": 60,
}


@dataclass(frozen=True, slots=True)
class Nodes:
    """Where the nodes of a cluster have what is elsewhere on this machine; None is the same place."""

    models: Path | None = None
    keys: Path | None = None

    def folder(self, package: Package) -> str:
        """In `models` as everywhere: NAME/VERSION/PRECISION."""
        found = package.folder.resolve()
        return str(found if self.models is None else self.models.joinpath(*found.parts[-3:]))

    def key_file(self, service: Service) -> str | None:
        return str(self.keys or service.keys) if service.keys else None


HERE = Nodes()


def render(service: Service, nodes: Nodes = HERE) -> Rendered:
    config = service.config
    models = [_model(service, nodes, name, model) for name, model in config.models.items()]
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": config.http.host, "port": config.http.port},
        "grpc_options": {"port": config.grpc.port, "grpc_servicer_functions": SERVICERS},
        "logging_config": {"encoding": "JSON", "enable_access_log": False},
        "applications": [_catalog(service, nodes), *models],
    }


def _catalog(service: Service, nodes: Nodes) -> Rendered:
    """At `/`: what no model's prefix takes is answered here, so a wrong path gets our own error."""
    manifests = {name: package.manifest for name, package in service.packages.items()}
    models = [{"name": name, "task": each.task, "version": each.version} for name, each in manifests.items()]
    return {
        "name": CATALOG,
        "route_prefix": "/",
        "import_path": "service.app:catalog",
        "args": {
            "models": models,
            "local": service.is_local,
            "keys": nodes.key_file(service),
            "metrics": _metrics(service),
        },
        "deployments": [
            {
                "name": CATALOG,
                "num_replicas": 1,
                "max_surge_percent": 100,
                "ray_actor_options": {"num_cpus": 0},
                **_ADMISSION,
                **_LIFE,
            }
        ],
    }


def _model(service: Service, nodes: Nodes, name: str, model: Model) -> Rendered:
    return {
        "name": name,
        "route_prefix": f"/models/{name}",
        "import_path": "service.app:model",
        "runtime_env": {"env_vars": {"RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": str(_largest_message(model))}},
        "args": _args(service, nodes, name, model),
        "deployments": [{"name": "model", **_scale(model), **_resources(model), **_ADMISSION, **_LIFE}],
    }


def _args(service: Service, nodes: Nodes, name: str, model: Model) -> Rendered:
    package = service.packages[name]
    limits = model.limits.model_dump()
    return {
        "name": name,
        "folder": nodes.folder(package),
        "fingerprint": _fingerprint(package),
        "device": model.device if model.resources.gpus else "cpu",
        "threads": math.ceil(model.resources.cpus),
        "rows": model.rows,
        "batch": model.batch.model_dump(),
        "limits": {**limits, "beams": min(limits["beams"], model.rows)},
        "local": service.is_local,
        "keys": nodes.key_file(service),
        "metrics": _metrics(service),
    }


def _fingerprint(package: Package) -> str:
    """Of the manifest, which has the hash of every other file: another export in the same place is another model."""
    return digest(package.file(MANIFEST))


def _metrics(service: Service) -> Rendered:
    """Where every replica serves its node's page: metrics are as public as the service is."""
    return {"host": service.config.http.host, "port": service.config.metrics.port}


def _largest_message(model: Model) -> int:
    """Twice what is allowed: gRPC refuses what is larger before it reaches us, we refuse the rest in our own words."""
    return 2 * model.limits.message_mb * _MB


def _scale(model: Model) -> Rendered:
    scale = model.autoscale
    if scale is None:
        return {"num_replicas": model.least_replicas}
    return {
        "num_replicas": "auto",
        "autoscaling_config": {
            "min_replicas": scale.min,
            "initial_replicas": model.least_replicas,
            "max_replicas": scale.max,
            "metrics_interval_s": scaling.REPORT_SECONDS,
            "look_back_period_s": scaling.LOOK_BACK_SECONDS,
            "upscale_delay_s": scaling.GROW_SECONDS,
            "downscale_delay_s": 0,  # the policy itself waits until fewer are enough
            "policy": {
                "policy_function": "service.scaling:RowsPolicy",
                "policy_kwargs": {
                    "target": scale.target,
                    "patience_seconds": model.limits.wait_ms / 1e3 / 2,  # half of what is refused
                    "shrink_seconds": scale.shrink_s,
                },
            },
        },
    }


def _resources(model: Model) -> Rendered:
    """While a model is updated, an old replica stays until a new one is ready; a GPU is seldom free twice."""
    return {
        "ray_actor_options": {"num_cpus": model.resources.cpus, "num_gpus": model.resources.gpus},
        "max_surge_percent": 0 if model.resources.gpus else 25,
    }
