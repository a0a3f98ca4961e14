"""Render serve.yaml as Ray Serve's declarative config: one application per model, and the catalog.

Serve replaces the replicas of an application whose args or resources changed and leaves the others running. The args of
a model therefore contain everything its replicas depend on, and nothing else.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwaiter.package.manifest import MANIFEST, Package, digest
from headwaiter.protocol.tasks import task_specs
from headwaiter.serving import autoscaling
from headwaiter.serving.config import CATALOG, CATALOG_MESSAGE_MB, Model, Service
from headwaiter.serving.ray_compat import MAX_MESSAGE_BYTES

SERVICERS = [
    "headwaiter.serving.ray_compat.install_admission",  # first: it wraps the handlers of the servicers below
    *dict.fromkeys(spec.add_servicer for spec in task_specs().values()),
    "headwaiter.v1.models_pb2_grpc.add_ModelsServicer_to_server",
    "grpc_health.v1.health_pb2_grpc.add_HealthServicer_to_server",
    "headwaiter.serving.ray_compat.add_reflection_v1",
]
RayConfig = dict[str, Any]
_MB = 1 << 20
# Replicas do admission control and return detailed errors, so Serve's own limits must never apply first.
_NO_SERVE_LIMITS = {"max_ongoing_requests": 10_000, "max_queued_requests": -1}
_LIFECYCLE = {
    "health_check_period_s": 1,  # Serve replaces a replica after three failed checks; until then it rejects requests
    "health_check_timeout_s": 10,
    "graceful_shutdown_wait_loop_s": 0.5,
    "graceful_shutdown_timeout_s": 60,
}


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Paths on the nodes of the cluster; None means the same path as on this machine."""

    models: Path | None = None
    keys: Path | None = None

    def folder(self, package: Package) -> str:
        """The package's directory on the nodes: NAME/VERSION/PRECISION below `models`."""
        folder = package.folder.resolve()
        return str(folder if self.models is None else self.models.joinpath(*folder.parts[-3:]))

    def key_file(self, service: Service) -> str | None:
        return str(self.keys or service.keys) if service.keys else None


LOCAL_PATHS = NodePaths()


def render(service: Service, nodes: NodePaths = LOCAL_PATHS) -> RayConfig:
    config = service.config
    models = [_model_application(service, nodes, name, model) for name, model in config.models.items()]
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": config.http.host, "port": config.http.port},
        "grpc_options": {"port": config.grpc.port, "grpc_servicer_functions": SERVICERS},
        "logging_config": {"encoding": "JSON", "enable_access_log": False},
        "applications": [_catalog_application(service, nodes), *models],
    }


def _catalog_application(service: Service, nodes: NodePaths) -> RayConfig:
    """The catalog. Its prefix is `/`, so it also answers requests to unknown models with a structured error."""
    manifests = {name: package.manifest for name, package in service.packages.items()}
    models = [
        {"name": name, "task": manifest.task, "version": manifest.version} for name, manifest in manifests.items()
    ]
    return {
        "name": CATALOG,
        "route_prefix": "/",
        "import_path": "headwaiter.serving.application:catalog",
        "runtime_env": _runtime_env(nodes, CATALOG_MESSAGE_MB),
        "args": {
            "models": models,
            "local": service.is_local,
            "keys": nodes.key_file(service),
            "metrics": _metrics_address(service),
        },
        "deployments": [
            {
                "name": CATALOG,
                "num_replicas": 1,
                "max_surge_percent": 100,
                "ray_actor_options": {"num_cpus": 0},
                **_NO_SERVE_LIMITS,
                **_LIFECYCLE,
            }
        ],
    }


def _model_application(service: Service, nodes: NodePaths, name: str, model: Model) -> RayConfig:
    return {
        "name": name,
        "route_prefix": f"/models/{name}",
        "import_path": "headwaiter.serving.application:model",
        "runtime_env": _runtime_env(nodes, model.limits.message_mb),
        "args": _replica_args(service, nodes, name, model),
        "deployments": [
            {"name": "model", **_scaling_options(model), **_resource_options(model), **_NO_SERVE_LIMITS, **_LIFECYCLE}
        ],
    }


def _runtime_env(nodes: NodePaths, message_mb: int) -> RayConfig:
    """gRPC's limit is twice that of requests, so that the replica itself rejects moderately oversized ones."""
    return {"env_vars": {MAX_MESSAGE_BYTES: str(2 * message_mb * _MB)}, **_python_option(nodes)}


def _python_option(nodes: NodePaths) -> RayConfig:
    """Ray puts the path of its Python unquoted into a shell command, so a path with spaces must come quoted."""
    quoted = shlex.quote(sys.executable)
    return {"py_executable": quoted} if nodes.models is None and quoted != sys.executable else {}


def _replica_args(service: Service, nodes: NodePaths, name: str, model: Model) -> RayConfig:
    package = service.packages[name]
    return {
        "name": name,
        "folder": nodes.folder(package),
        "fingerprint": _fingerprint(package),
        "settings": model.replica_settings().model_dump(),
        "local": service.is_local,
        "keys": nodes.key_file(service),
        "metrics": _metrics_address(service),
    }


def _fingerprint(package: Package) -> str:
    """Digest of the manifest, which lists the hash of every other file, so that a new export is redeployed."""
    return digest(package.file(MANIFEST))


def _metrics_address(service: Service) -> RayConfig:
    """Address of the metrics endpoint: the service's own bind address."""
    return {"host": service.config.http.host, "port": service.config.metrics.port}


def _scaling_options(model: Model) -> RayConfig:
    scale = model.autoscale
    if scale is None:
        return {"num_replicas": model.initial_replicas}
    return {
        "num_replicas": "auto",
        "autoscaling_config": {
            "min_replicas": scale.min,
            "initial_replicas": model.initial_replicas,
            "max_replicas": scale.max,
            "metrics_interval_s": autoscaling.REPORT_SECONDS,
            "look_back_period_s": autoscaling.LOOK_BACK_SECONDS,
            "upscale_delay_s": autoscaling.SCALE_UP_DELAY_SECONDS,
            "downscale_delay_s": 0,  # the policy applies the scale-down delay itself
            "policy": {
                "policy_function": "headwaiter.serving.autoscaling:UtilisationPolicy",
                "policy_kwargs": {
                    "target": scale.target,
                    "max_wait_seconds": model.limits.max_queue_wait_ms
                    / 1e3
                    / 2,  # half of the wait at which requests are rejected
                    "scale_down_delay_seconds": scale.scale_down_delay_s,
                },
            },
        },
    }


def _resource_options(model: Model) -> RayConfig:
    """Resources, and surge: CPU models are updated by adding replicas first, GPU models rarely have a spare GPU."""
    return {
        "ray_actor_options": {"num_cpus": model.resources.cpus, "num_gpus": model.resources.gpus},
        "max_surge_percent": 0 if model.resources.gpus else 25,
    }
