"""Start or connect to a Ray cluster, deploy applications on Ray Serve, and shut everything down cleanly."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwaiter.serving import haproxy_files, ray_compat
from headwaiter.serving.config import Config, Service
from headwaiter.serving.errors import LaunchError, PreconditionError
from headwaiter.serving.ports import NoFreePortsError, reserve_ports
from headwaiter.serving.ray_compat import NODE_ENVIRONMENT, ServeController
from headwaiter.serving.ray_config import RayConfig

Phase = Literal["starting", "ready", "failed"]
_PHASES: dict[str, Phase] = {"RUNNING": "ready", "DEPLOY_FAILED": "failed", "UNHEALTHY": "failed"}
_POLL_SECONDS = 0.2
_DRAIN_SECONDS = 90
_ANSWER_SECONDS = 90  # until every application answers through the proxy
_CONNECT_TIMEOUT_SECONDS = 10
_OBJECT_STORE_BYTES = 100_000_000  # the service does not use the object store


@dataclass(frozen=True, slots=True)
class ApplicationState:
    phase: Phase
    message: str


class Cluster:
    """Ray Serve on the Ray cluster that this process is connected to."""

    def __init__(self, rendered: RayConfig) -> None:
        import ray
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._ray, self._serve = ray, serve
        options = ("proxy_location", "http_options", "grpc_options", "logging_config")
        try:
            serve.start(**{name: rendered[name] for name in options})
        except (TimeoutError, ray.exceptions.RayError) as error:
            raise LaunchError(f"Serve did not start ({type(error).__name__}); see the logs in {self.logs}.") from error
        self._controller = ServeController()
        self._check_address(rendered)

    def _check_address(self, rendered: RayConfig) -> None:
        """Serve ignores new addresses if it is already running, so a difference is an error."""
        host, http_port, grpc_port = self._controller.addresses()
        requested = (*rendered["http_options"].values(), rendered["grpc_options"]["port"])
        if (host, http_port, grpc_port) != requested:
            raise PreconditionError(
                f"Serve is already running on {host} with HTTP port {http_port} and gRPC port {grpc_port}; "
                "stop it before changing them."
            )

    def deploy(self, rendered: RayConfig) -> set[str]:
        """Deploy exactly these applications; returns the names of those whose config is unchanged."""
        before = self._controller.applications()
        self._controller.deploy(rendered)
        return {app["name"] for app in rendered["applications"] if _deployed_config(before.get(app["name"])) == app}

    def states(self) -> dict[str, ApplicationState]:
        return {name: _state(app) for name, app in self._serve.status().applications.items()}

    def watch_states(self, names: Iterable[str]) -> Iterator[tuple[str, ApplicationState]]:
        """Yield every state change until all applications are ready or failed and the proxies serve them."""
        last: dict[str, ApplicationState] = {}
        waiting = set(names)
        while waiting:
            states = self.states()
            for name in sorted(waiting & states.keys()):
                if states[name] != last.get(name):
                    last[name] = states[name]
                    yield name, states[name]
            waiting = {name for name in waiting if name not in states or states[name].phase == "starting"}
            time.sleep(_POLL_SECONDS)
        try:
            self._controller.wait_for_proxies()
        except TimeoutError as error:
            raise LaunchError(f"HAProxy did not start; see the logs in {self.logs}.") from error

    def drain(self) -> None:
        """Remove all applications while the proxy is still running, so that in-flight requests finish."""
        self.deploy({"applications": []})
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self.states() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Stop the processes of Serve."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        with suppress(self._ray.exceptions.RayError):  # raised once the controller has exited
            self._controller.begin_shutdown()
            while time.monotonic() < deadline:
                self._controller.check_alive()
                time.sleep(_POLL_SECONDS)

    @property
    def address(self) -> str:
        return str(self._ray.get_runtime_context().gcs_address)

    @property
    def node(self) -> str:
        return str(self._ray.get_runtime_context().get_node_id())

    @property
    def logs(self) -> Path:
        return ray_compat.log_directory()


def wait_until_answering(service: Service, names: Iterable[str]) -> None:
    """Wait until every application answers through the proxy; raises LaunchError on timeout.

    Serve reports the proxy as ready as soon as its fallback is, even while HAProxy reloads, so checks are retried.
    """
    from headwaiter.serving.probe import unready_applications

    host = service.config.http.host
    address = f"{'127.0.0.1' if host == '0.0.0.0' else host}:{service.config.grpc.port}"
    deadline = time.monotonic() + _ANSWER_SECONDS
    for name in names:
        while unready_applications(address, [name]):
            if time.monotonic() > deadline:
                raise LaunchError(f"{name} is running but does not answer at {address}.")
            time.sleep(_POLL_SECONDS)


def _deployed_config(details: dict[str, Any] | None) -> RayConfig:
    """The config with which an application was deployed, without the global logging config that Serve adds to it."""
    config = (details or {}).get("deployed_app_config") or {}
    return {name: value for name, value in config.items() if name != "logging_config"}


def _state(app: Any) -> ApplicationState:
    messages = [*(deployment.message for deployment in app.deployments.values()), app.message]
    return ApplicationState(_PHASES.get(app.status, "starting"), next(filter(None, messages), ""))


def root_cause(message: str) -> str:
    """The last exception of a stack trace, or the first line of any other message."""
    exceptions = re.findall(r"^([\w.]+(?:Error|Exception|Exit|Interrupt))(?::\s*(.*))?$", message, re.MULTILINE)
    if not exceptions:
        return message.strip().partition("\n")[0].rstrip(".")
    kind, text = exceptions[-1]
    return (text if text and kind.startswith("headwaiter.") else f"{kind}: {text}").rstrip(" .:")


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
                num_cpus=_ray_num_cpus(service),
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            node = ray.get_runtime_context().get_node_id()
            _check_gpus(service, ray.cluster_resources().get("GPU", 0))
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


def _ray_num_cpus(service: Service) -> int:
    """Logical CPUs of the local Ray: enough for all replicas and one extra per model during an update."""
    surge = sum(model.resources.cpus for model in service.config.models.values())
    return max(cores(), math.ceil(requested_cpus(service) + surge))


def _check_gpus(service: Service, available: float) -> None:
    requested = sum(model.resources.gpus * model.initial_replicas for model in service.config.models.values())
    if requested > available:
        raise PreconditionError(
            f"The models request {requested:g} GPUs and this machine has {available:g}; "
            f"lower resources.gpus in {service.file}."
        )


def _set_default_environment(environment: dict[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def cores() -> int:
    """CPU cores available to this process."""
    return len(os.sched_getaffinity(0))
