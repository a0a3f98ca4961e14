"""A Ray of our own, or one that runs already, with Serve on it: deploy, watch, drain, leave nothing behind."""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from service.config import Service
from service.ports import NoPortsError, own_ports
from service.rendering import ENVIRONMENT, Rendered

Phase = Literal["starting", "ready", "failed"]
_PHASES: dict[str, Phase] = {"RUNNING": "ready", "DEPLOY_FAILED": "failed", "UNHEALTHY": "failed"}
_POLL_SECONDS = 0.2
_DRAIN_SECONDS = 90
_ANSWER_SECONDS = 90  # for every application to answer through the proxy
_LISTENER_SECONDS = 10
_HAPROXY = Path("/tmp/haproxy-serve")  # where Serve keeps a folder for each node
_HAPROXY_SECONDS = 5
_OBJECT_STORE = 100_000_000  # nothing goes through it
_OWN = {"RAY_AUTH_MODE": "token"}  # Ray's default for its own clusters, and what a second process must say to join
_KNOBS = {
    **ENVIRONMENT,
    **_OWN,
    "RAY_USAGE_STATS_ENABLED": "0",
    # Within Ray's own 5 and 10 seconds a busy machine does not start a proxy, which is then killed and started again.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",  # one proxy, on this machine, hears of it in a second
    "RAY_SERVE_HAPROXY_H2_FE_MAX_CONCURRENT_STREAMS": "1000",  # of one client; what is too much, replicas refuse
}


class LaunchError(Exception):
    """Serving did not begin or did not change; the message says why."""

    code = 1


class RefusedError(LaunchError):
    """Nothing was started or changed."""

    code = 2


@dataclass(frozen=True, slots=True)
class State:
    phase: Phase
    message: str


class Cluster:
    """Serve, on the Ray that this process is connected to."""

    def __init__(self, rendered: Rendered) -> None:
        import ray
        from ray import serve
        from ray.serve.context import _get_global_client

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._ray, self._serve = ray, serve
        options = ("proxy_location", "http_options", "grpc_options", "logging_config")
        try:
            serve.start(**{name: rendered[name] for name in options})
        except (TimeoutError, ray.exceptions.RayError) as error:
            raise LaunchError(f"Serve did not start ({type(error).__name__}); the logs are in {self.logs}.") from error
        client: Any = _get_global_client()
        self._client, self._controller = client, client._controller
        self._demand_address(rendered)

    def _demand_address(self, rendered: Rendered) -> None:
        """A Serve that was there before keeps its own."""
        http, grpc = self._client.http_config, self._ray.get(self._controller.get_grpc_config.remote())
        found = (http.host, http.port, grpc.port)
        wanted = (*rendered["http_options"].values(), rendered["grpc_options"]["port"])
        if found != wanted:
            raise RefusedError(
                f"Serve listens at {http.host}, port {http.port} for HTTP and {grpc.port} for gRPC; "
                "that cannot change while it runs."
            )

    def deploy(self, rendered: Rendered) -> set[str]:
        """Asks for these applications and no others; returns the names of those that were there just so."""
        from ray.serve.schema import ServeDeploySchema

        before = self._client.get_serve_details()["applications"]
        self._client.deploy_apps(ServeDeploySchema.model_validate(rendered))
        return {each["name"] for each in rendered["applications"] if _told(before.get(each["name"])) == each}

    def states(self) -> dict[str, State]:
        return {name: _state(app) for name, app in self._serve.status().applications.items()}

    def changes(self, names: Iterable[str]) -> Iterator[tuple[str, State]]:
        """Each state that an application comes to, until all are ready or have failed and the proxy knows them."""
        last: dict[str, State] = {}
        waiting = set(names)
        while waiting:
            found = self.states()
            for name in sorted(waiting & found.keys()):
                if found[name] != last.get(name):
                    last[name] = found[name]
                    yield name, found[name]
            waiting = {name for name in waiting if name not in found or found[name].phase == "starting"}
            time.sleep(_POLL_SECONDS)
        try:
            self._client.wait_for_proxies_serving()
        except TimeoutError as error:
            raise LaunchError(f"HAProxy did not start; the logs are in {self.logs}.") from error

    def drain(self) -> None:
        """Takes the applications away while the proxy still stands: answers under way reach their clients."""
        self.deploy({"applications": []})
        deadline = time.monotonic() + _DRAIN_SECONDS
        while self.states() and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def close(self) -> None:
        """Ends Serve's own processes."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        with suppress(self._ray.exceptions.RayError):  # that is how the controller's end shows
            self._ray.get(self._controller.graceful_shutdown.remote(wait=False))
            while time.monotonic() < deadline:
                self._ray.get(self._controller.check_alive.remote())
                time.sleep(_POLL_SECONDS)

    @property
    def address(self) -> str:
        return str(self._ray.get_runtime_context().gcs_address)

    @property
    def node(self) -> str:
        return str(self._ray.get_runtime_context().get_node_id())

    @property
    def logs(self) -> Path:
        node: Any = self._ray._private.worker._global_node
        return Path(node.get_logs_dir_path()) / "serve"


def await_answers(service: Service, names: Iterable[str]) -> None:
    """Every application answers through the proxy. Serve calls the proxy ready as soon as its fallback is, also while
    it is being reloaded; a call that is lost in between is ours, and is made again."""
    from service.probe import failures

    host = service.config.http.host
    address = f"{'127.0.0.1' if host == '0.0.0.0' else host}:{service.config.grpc.port}"
    deadline = time.monotonic() + _ANSWER_SECONDS
    for name in names:
        while failures(address, [name]):
            if time.monotonic() > deadline:
                raise LaunchError(f"{name} runs and does not answer at {address}.")
            time.sleep(_POLL_SECONDS)


def _told(details: dict[str, Any] | None) -> Rendered:
    """What Serve was told of an application; the logging of all is written into each."""
    told = (details or {}).get("deployed_app_config") or {}
    return {name: value for name, value in told.items() if name != "logging_config"}


def _state(app: Any) -> State:
    messages = [*(each.message for each in app.deployments.values()), app.message]
    return State(_PHASES.get(app.status, "starting"), next((each for each in messages if each), ""))


def cause(message: str) -> str:
    """The exception at the end of a stack trace, or the first line of anything else."""
    raised = re.findall(r"^([\w.]+(?:Error|Exception|Exit|Interrupt))(?::\s*(.*))?$", message, re.MULTILINE)
    if not raised:
        return message.strip().partition("\n")[0].rstrip(".")
    kind, text = raised[-1]
    return (text if text and kind.startswith("service.") else f"{kind}: {text}").rstrip(" .:")


@contextmanager
def local_ray(service: Service) -> Iterator[None]:
    """A Ray on this machine that ends with the block. Its own words go to its logs."""
    demand_free_ports(service)
    try:
        with own_ports() as ports:
            _set_unless_set({**_KNOBS, "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, cores())), **ports})
            with _ray_of_its_own(service):
                yield
    except NoPortsError as error:
        raise RefusedError(str(error)) from error


@contextmanager
def _ray_of_its_own(service: Service) -> Iterator[None]:
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    node = None
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        try:
            ray.init(
                address="local",
                num_cpus=_cpus_of_ray(service),
                object_store_memory=_OBJECT_STORE,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
            node = ray.get_runtime_context().get_node_id()
            _demand_gpus(service, ray.cluster_resources().get("GPU", 0))
            yield
        finally:
            ray.shutdown()
            if node:
                clear_haproxy(node)


def clear_haproxy(node: str) -> None:
    """Ends what is left of a Ray node's HAProxy, which outlives a Ray that was killed, and forgets its files."""
    folder = _HAPROXY / node
    deadline = time.monotonic() + _HAPROXY_SECONDS
    while (left := _processes_with(f"{folder}/haproxy.cfg")) and time.monotonic() < deadline:
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def _processes_with(argument: str) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # a process may end while it is looked at
            if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


@contextmanager
def running_ray(address: str | None = None) -> Iterator[None]:
    """The Ray of a service of our own, or the one that the environment means; it goes on when the block ends."""
    if address:
        _set_unless_set(_OWN)
    import ray

    try:
        _demand_listener(address or os.environ.get("RAY_ADDRESS", ""))
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError) as error:
        raise RefusedError(
            f"No Ray cluster answers ({str(error).partition(chr(10))[0].rstrip('.')}); "
            "`ray start --head` starts one here, RAY_ADDRESS names another."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _demand_listener(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _LISTENER_SECONDS).close()


def slow_nodes() -> bool:
    """The cluster that this process is connected to was started without HAProxy in front."""
    import ray

    @ray.remote(num_cpus=0)
    def environment() -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in ENVIRONMENT}

    return bool(ray.get(environment.remote()) != ENVIRONMENT)


def demand_reachable(service: Service) -> None:
    import ray

    nodes = sum(node["Alive"] for node in ray.nodes())
    if nodes > 1 and service.is_local:
        raise RefusedError(
            f"http.host is {service.config.http.host} and the cluster has {nodes} nodes, "
            f"which could not reach each other's replicas; set it to 0.0.0.0 in {service.file}."
        )


def demand_free_ports(service: Service) -> None:
    for place, port in service.config.ports.items():
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((service.config.http.host, port))
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
            raise RefusedError(f"Port {port} {why}; free it or change {place} in {service.file}.") from error


def cpus_asked(service: Service) -> float:
    """By every model's first replicas."""
    return sum(model.resources.cpus * model.least_replicas for model in service.config.models.values())


def _cpus_of_ray(service: Service) -> int:
    """Ray only counts them: enough that every model has its replicas, and one more while it is updated."""
    while_updated = sum(model.resources.cpus for model in service.config.models.values())
    return max(cores(), math.ceil(cpus_asked(service) + while_updated))


def _demand_gpus(service: Service, there: float) -> None:
    asked = sum(model.resources.gpus * model.least_replicas for model in service.config.models.values())
    if asked > there:
        raise RefusedError(
            f"The models ask for {asked:g} GPUs and this machine has {there:g}; lower resources.gpus in {service.file}."
        )


def _set_unless_set(environment: dict[str, str]) -> None:
    for name, value in environment.items():
        os.environ.setdefault(name, value)


def cores() -> int:
    return len(os.sched_getaffinity(0))
