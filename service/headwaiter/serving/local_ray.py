"""Start a private Ray on this machine, or connect to one that is running."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from headwaiter.serving import haproxy_files, ray_compat
from headwaiter.serving.config import CATALOG, Service
from headwaiter.serving.errors import PreconditionError
from headwaiter.serving.ports import NoFreePortsError, reserve_ports
from headwaiter.serving.preflight import check_free_ports, check_gpus, cores, local_ray_cpus

_CONNECT_TIMEOUT_SECONDS = 10
_OBJECT_STORE_BYTES = 100_000_000  # the service does not use the object store


@contextmanager
def start_local_ray(service: Service) -> Iterator[None]:
    """Run a local Ray cluster for the duration of the block; its output goes to its logs."""
    ray_compat.check_version()
    check_free_ports(service.config, service.file)
    try:
        with reserve_ports() as ports:
            _set_default_environment(
                {
                    **ray_compat.LOCAL_ENVIRONMENT,
                    ray_compat.HAPROXY_THREADS: str(min(4, cores())),
                    **haproxy_files.environment(),
                    **haproxy_files.program(ray_compat.haproxy_script(CATALOG)),
                    **ports,
                }
            )
            with _local_ray_cluster(service):
                yield
    except (NoFreePortsError, haproxy_files.ForeignDirectoryError) as error:
        raise PreconditionError(str(error)) from error


@contextmanager
def _local_ray_cluster(service: Service) -> Iterator[None]:
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    node = None
    with open(os.devnull, "w") as devnull, redirect_stdout(devnull):
        try:
            ray.init(
                address="local",
                num_cpus=local_ray_cpus(service),
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            node = ray.get_runtime_context().get_node_id()
            check_gpus(service, ray.cluster_resources().get("GPU", 0))
            yield
        finally:
            ray.shutdown()
            if node:
                haproxy_files.remove(node)


@contextmanager
def connect_to_ray(address: str | None = None) -> Iterator[None]:
    """Connect to the Ray at `address`, or to the one in the environment; the cluster outlives the block."""
    ray_compat.check_version()
    if address:
        _set_default_environment(ray_compat.LOCAL_AUTH)
    import ray

    try:
        _check_listening(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError) as error:
        raise PreconditionError(
            f"No Ray cluster is reachable ({str(error).partition(chr(10))[0].rstrip('.')}); "
            "start one with `ray start --head` or set RAY_ADDRESS."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Fail early if nothing listens: Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_SECONDS).close()


def _set_default_environment(environment: dict[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)
