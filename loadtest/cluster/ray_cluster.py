"""A Ray cluster of namespace machines with the service on it: a head without replicas, and workers.

The responses of every replica are read from its request log, so that tests can compare them with what clients received.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from headwaiter.serving.ray_compat import NODE_ENVIRONMENT
from loadtest.cluster.network_namespaces import Machine, machines, processes
from loadtest.service_process import process_title, write_config

SECONDS = 300
PORTS = {"grpc": 9000, "http": 8000, "metrics": 8080}
"""The same on every machine."""
_BIN = Path(sys.executable).parent
_GCS, _ALIVE, _CPUS = 6379, 0, 2
_NODE = ("--block", "--disable-usage-stats", "--object-store-memory=100000000")
_ENVIRONMENT = {
    **NODE_ENVIRONMENT,
    "RAY_AUTH_MODE": "disabled",
    # A node is declared dead after three failed checks of 3 s each: Ray's default of a minute only prolongs the tests,
    # and much shorter limits would drop nodes that are merely busy.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "5",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_worker_niceness": "0",  # the default of 15 starves replicas when clients run on the same machine
}


class WaitTimeoutError(AssertionError):
    """A condition was not met in time."""


def wait_until(holds: Callable[[], bool], condition: str, seconds: float = SECONDS) -> float:
    """Wait until `holds()` is true and return the seconds it took; raise WaitTimeoutError after `seconds`."""
    started = time.monotonic()
    while not holds():
        if time.monotonic() > started + seconds:
            raise WaitTimeoutError(f"not true after {seconds:g} s: {condition}")
        time.sleep(0.1)
    return time.monotonic() - started


@dataclass(frozen=True, slots=True)
class Replica:
    machine: Machine = field(hash=False, compare=False)
    model: str
    process: int

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)

    @property
    def log(self) -> Path | None:
        """The request log, or None before the first entry. Its name contains the process id inside the machine."""
        status = Path(f"/proc/{self.process}/status").read_text()
        inner_pid = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
        return next(iter(_logs(self.machine, self.model, inner_pid)), None)


@dataclass(frozen=True, slots=True)
class LoggedResponse:
    """A response in a replica's request log."""

    request_id: str
    code: str
    when: float  # Unix time
    replica: Path  # the replica's log


@dataclass
class Cluster:
    head: Machine
    workers: list[Machine]
    folder: Path

    def address(self, first: int = 0) -> str:
        """Return a gRPC target of all workers, starting with worker `first`; gRPC uses the first that answers."""
        rotated = [*self.workers[first:], *self.workers[:first]]
        return "ipv4:" + ",".join(f"{worker.address}:{PORTS['grpc']}" for worker in rotated)

    def start_worker(self, worker: Machine) -> None:
        options = (
            f"--address={self.head.address}:{_GCS}",
            f"--num-cpus={_CPUS}",
            f"--node-ip-address={worker.address}",
        )
        worker.start([str(_BIN / "ray"), "start", *options, *_NODE], {**os.environ, **_ENVIRONMENT})

    def deploy(self, models: dict[str, Any]) -> None:
        """Run `headwaiter serve --cluster` on the head."""
        file = self.folder / "serve.yaml"
        write_config(file, PORTS, models, http={"port": PORTS["http"], "host": "0.0.0.0"})
        result = subprocess.run(
            self.head.command_inside([str(_BIN / "headwaiter"), "serve", str(file), "--cluster"]),
            env={**os.environ, **_ENVIRONMENT, "RAY_ADDRESS": f"{self.head.address}:{_GCS}"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert result.returncode == 0, result.stdout + result.stderr

    def replicas(self, model: str) -> list[Replica]:
        title = f"ray::ServeReplica:{model}:"
        return [
            Replica(machine, model, process)
            for machine in (self.head, *self.workers)
            for process in processes(machine)
            if process_title(process).startswith(title)
        ]

    def runs_on_every_worker(self, models: Iterable[str]) -> bool:
        """Return whether every worker has a replica of each model."""
        worker_names = {worker.name for worker in self.workers}
        return all({replica.machine.name for replica in self.replicas(model)} == worker_names for model in models)

    def controller(self) -> int | None:
        return next(
            (pid for pid in processes(self.head) if process_title(pid).startswith("ray::ServeController")), None
        )

    def nodes(self) -> int:
        """Return the number of nodes that the head considers alive."""
        from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

        nodes = GcsClient(address=f"{self.head.address}:{_GCS}").get_all_node_info()
        return sum(node.state == _ALIVE for node in nodes.values())

    def logged(self, model: str) -> list[LoggedResponse]:
        """Return all logged responses, answers and rejections, of current and former replicas."""
        logs = (log for machine in (self.head, *self.workers) for log in _logs(machine, model))
        return [response for log in logs for response in _read_log(log)]

    def active_replicas(self, model: str, since: float, lost: Machine | None = None) -> int:
        """Return the number of running replicas, outside a lost machine, that have answered after `since`."""
        logs = [replica.log for replica in self.replicas(model) if replica.machine is not lost]
        return sum(any(response.when > since for response in _read_log(log)) for log in logs if log)


def _logs(machine: Machine, model: str, process: str = "*") -> Iterable[Path]:
    return machine.folder.glob(f"ray/session_2*/logs/serve/requests_{model}_{process}.log")


def _read_log(log: Path) -> Iterator[LoggedResponse]:
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "request_id" in entry:
            yield LoggedResponse(
                entry["request_id"], entry["code"], datetime.fromisoformat(entry["time"]).timestamp(), log
            )


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a head and workers that have joined it; nothing is deployed yet."""
    with machines(1 + workers, folder) as (head, *worker_machines):
        _start_head(head)
        ray_cluster = Cluster(head, worker_machines, folder)
        for worker in worker_machines:
            ray_cluster.start_worker(worker)
        for worker in worker_machines:
            _wait_for_start(worker)
        yield ray_cluster


@contextmanager
def elastic_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """Start a head whose autoscaler adds workers for pending replicas; a worker has 2 CPUs."""
    from loadtest.cluster import node_provider

    with machines(1 + workers, folder) as (head, *worker_machines):
        requested, config = folder / "requested", folder / "autoscaling.yaml"
        requested.mkdir()
        config.write_text(yaml.safe_dump(node_provider.config(requested, head, worker_machines, _CPUS)))
        ray_cluster = Cluster(head, worker_machines, folder)
        with node_provider.run_requested_nodes(requested, worker_machines, ray_cluster.start_worker):
            _start_head(head, f"--autoscaling-config={config}")
            yield ray_cluster


def _start_head(head: Machine, *more: str) -> None:
    options = ("--head", "--include-dashboard=false", "--num-cpus=0", f"--port={_GCS}")
    head.start(
        [str(_BIN / "ray"), "start", *options, f"--node-ip-address={head.address}", *_NODE, *more],
        {**os.environ, **_ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    _wait_for_start(head)


def _wait_for_start(machine: Machine) -> None:
    def has_started() -> bool:
        assert machine.is_running, machine.log.read_text()
        return "Ray runtime started" in machine.log.read_text()

    wait_until(has_started, f"Ray has started on {machine.name}")
