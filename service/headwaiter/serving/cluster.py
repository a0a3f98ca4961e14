"""Ray Serve on a connected Ray cluster: deploy applications, watch them start, drain and stop them."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from headwaiter.serving import ray_compat
from headwaiter.serving.config import Service
from headwaiter.serving.cpu_demand import check_cpus, cpu_demands
from headwaiter.serving.errors import LaunchError, PreconditionError
from headwaiter.serving.ray_compat import ServeController
from headwaiter.serving.ray_config import RayConfig

Phase = Literal["starting", "ready", "failed"]
PHASES: dict[str, Phase] = {"RUNNING": "ready", "DEPLOY_FAILED": "failed", "UNHEALTHY": "failed"}
_POLL_SECONDS = 0.2
_DRAIN_SECONDS = 90
_ANSWER_SECONDS = 90  # until every application answers through the proxy


@dataclass(frozen=True, slots=True)
class ApplicationState:
    phase: Phase
    message: str


class Cluster:
    """Ray Serve on the Ray cluster that this process is connected to. `can_grow`: nodes may be added to it."""

    def __init__(self, rendered: RayConfig, *, can_grow: bool = False) -> None:
        import ray
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._ray, self._serve, self._can_grow = ray, serve, can_grow
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
        """Deploy exactly these applications; returns the names of those whose config is unchanged.

        Raises PreconditionError and changes nothing if Ray has too few CPUs and cannot grow.
        """
        applications, running = rendered["applications"], self._controller.applications()
        unchanged = {app["name"] for app in applications if _deployed_config(running.get(app["name"])) == app}
        if not self._can_grow:
            check_cpus(cpu_demands(applications, running, unchanged), self.cpus)
        self._controller.deploy(rendered)
        return unchanged

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
    def cpus(self) -> float:
        return float(self._ray.cluster_resources().get("CPU", 0))

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
    return ApplicationState(PHASES.get(app.status, "starting"), next(filter(None, messages), ""))


def describe_error(error: BaseException) -> str:
    """The root cause of an exception, as a clause."""
    return root_cause("".join(traceback.format_exception_only(error)))


def root_cause(message: str) -> str:
    """The last exception of a stack trace, or the first line of any other message."""
    exceptions = re.findall(r"^([\w.]+(?:Error|Exception|Exit|Interrupt))(?::\s*(.*))?$", message, re.MULTILINE)
    if not exceptions:
        return message.strip().partition("\n")[0].rstrip(".")
    kind, text = exceptions[-1]
    return (text if text and kind.startswith("headwaiter.") else f"{kind}: {text}").rstrip(" .:")
