"""Checks before something is started or changed: ports, CPUs, GPUs, and the nodes of a cluster."""

from __future__ import annotations

import errno
import math
import os
import socket
from pathlib import Path

from headwaiter.engine.cpus import available_cpus
from headwaiter.serving.config import Config, Service
from headwaiter.serving.errors import PreconditionError
from headwaiter.serving.ray_compat import NODE_ENVIRONMENT


def lacks_haproxy() -> bool:
    """Whether the connected cluster was started without HAProxy."""
    import ray

    @ray.remote(num_cpus=0)
    def environment() -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in NODE_ENVIRONMENT}

    return bool(ray.get(environment.remote()) != NODE_ENVIRONMENT)


def required_variables() -> list[str]:
    """NAME=VALUE of the variables that every node of a cluster needs."""
    return [f"{name}={value}" for name, value in NODE_ENVIRONMENT.items()]


def check_nodes_reachable(service: Service) -> None:
    """Raise PreconditionError if a cluster of several nodes would listen on loopback only."""
    import ray

    nodes = sum(node["Alive"] for node in ray.nodes())
    if nodes > 1 and service.is_local:
        raise PreconditionError(
            f"http.host is {service.config.http.host}, but the {nodes} nodes of the cluster must reach each other's "
            f"replicas; set it to 0.0.0.0 in {service.file}."
        )


def check_free_ports(config: Config, file: Path) -> None:
    """Raise PreconditionError if a port of the service cannot be bound."""
    for key, port in config.ports.items():
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((config.http.host, port))
        except OSError as error:
            reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
            section = key.partition(".")[0]
            raise PreconditionError(
                f"Port {port} {reason}; free it, change {key} in {file}, or choose another with --{section}-port "
                f"(`make serve {section.upper()}_PORT=…`)."
            ) from error


def requested_cpus(service: Service) -> float:
    """CPUs that the initial replicas of all models request."""
    return sum(model.resources.cpus * model.initial_replicas for model in service.config.models.values())


def local_ray_cpus(service: Service) -> int:
    """Logical CPUs of the local Ray: enough for all replicas and one extra per model during an update."""
    surge = sum(model.resources.cpus for model in service.config.models.values())
    return max(cores(), math.ceil(requested_cpus(service) + surge))


def check_gpus(service: Service, available: float) -> None:
    requested = sum(model.resources.gpus * model.initial_replicas for model in service.config.models.values())
    if requested > available:
        raise PreconditionError(
            f"The models request {requested:g} GPUs and this machine has {available:g}; "
            f"lower resources.gpus in {service.file}."
        )


def cores() -> int:
    """CPU cores available to this process, limited by its CPU quota."""
    return available_cpus()
