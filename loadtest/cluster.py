"""A Ray cluster of several machines inside this machine, with the service on it: head without replicas, and workers.

What every replica answered is read from its log, as an operator would, so that it can be held against what callers got.
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

from loadtest.namespaces import Machine, machines, processes
from loadtest.served import title, write
from service.rendering import ENVIRONMENT

SECONDS = 300
PORTS = {"grpc": 9000, "http": 8000, "metrics": 8080}
"""Every machine has its own."""
_BIN = Path(sys.executable).parent
_GCS, _ALIVE, _CPUS = 6379, 0, 2
_NODE = ("--block", "--disable-usage-stats", "--object-store-memory=100000000")
_ENVIRONMENT = {
    **ENVIRONMENT,
    "RAY_AUTH_MODE": "disabled",
    # A machine is given up when it was silent to three questions of three seconds each: Ray's own minute would only be
    # waited for, and with much less a machine that is merely busy would be given up.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "5",
    "RAY_SERVE_HAPROXY_NBTHREAD": "1",
    "AUTOSCALER_UPDATE_INTERVAL_S": "1",
    "RAY_worker_niceness": "0",  # Ray's own 15 leaves replicas nothing beside whoever calls them on the same machine
}


class StillNotError(AssertionError):
    """What was waited for did not come."""


def wait_until(holds: Callable[[], bool], what: str, seconds: float = SECONDS) -> float:
    """How long it took."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() > begun + seconds:
            raise StillNotError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.1)
    return time.monotonic() - begun


@dataclass(frozen=True, slots=True)
class Replica:
    machine: Machine = field(hash=False, compare=False)
    model: str
    process: int

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)

    @property
    def log(self) -> Path | None:
        """Once it has logged anything. Named by the number that its process has inside its machine."""
        status = Path(f"/proc/{self.process}/status").read_text()
        number = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
        return next(iter(_logs(self.machine, self.model, number)), None)


@dataclass(frozen=True, slots=True)
class Logged:
    """One answer, as the replica that gave it has logged it."""

    request_id: str
    code: str
    when: float
    replica: Path
    """Its log."""


@dataclass
class Cluster:
    head: Machine
    workers: list[Machine]
    folder: Path

    def address(self, first: int = 0) -> str:
        """Of all workers, as gRPC takes several: the first that answers is used."""
        turned = [*self.workers[first:], *self.workers[:first]]
        return "ipv4:" + ",".join(f"{each.address}:{PORTS['grpc']}" for each in turned)

    def start_worker(self, worker: Machine) -> None:
        joining = (
            f"--address={self.head.address}:{_GCS}",
            f"--num-cpus={_CPUS}",
            f"--node-ip-address={worker.address}",
        )
        worker.start([str(_BIN / "ray"), "start", *joining, *_NODE], {**os.environ, **_ENVIRONMENT})

    def deploy(self, models: dict[str, Any]) -> None:
        """As an operator does: `headwaiter serve --cluster`, on the head."""
        file = self.folder / "serve.yaml"
        write(file, PORTS, models, http={"port": PORTS["http"], "host": "0.0.0.0"})
        done = subprocess.run(
            self.head.inside([str(_BIN / "headwaiter"), "serve", str(file), "--cluster"]),
            env={**os.environ, **_ENVIRONMENT, "RAY_ADDRESS": f"{self.head.address}:{_GCS}"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def replicas(self, model: str) -> list[Replica]:
        wanted = f"ray::ServeReplica:{model}:"
        return [
            Replica(machine, model, process)
            for machine in (self.head, *self.workers)
            for process in processes(machine)
            if title(process).startswith(wanted)
        ]

    def is_spread(self, models: Iterable[str]) -> bool:
        """Every worker has a replica of each."""
        everywhere = {worker.name for worker in self.workers}
        return all({each.machine.name for each in self.replicas(model)} == everywhere for model in models)

    def controller(self) -> int | None:
        return next((each for each in processes(self.head) if title(each).startswith("ray::ServeController")), None)

    def nodes(self) -> int:
        """Those that the head believes to be alive."""
        from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

        known = GcsClient(address=f"{self.head.address}:{_GCS}").get_all_node_info()
        return sum(each.state == _ALIVE for each in known.values())

    def logged(self, model: str) -> list[Logged]:
        """All that was answered or refused, by all replicas that there were."""
        found = (log for machine in (self.head, *self.workers) for log in _logs(machine, model))
        return [each for log in found for each in _read(log)]

    def at_work(self, model: str, since: float, lost: Machine | None = None) -> int:
        """Replicas that live, elsewhere than on a lost machine, and have answered since then."""
        living = [each.log for each in self.replicas(model) if each.machine is not lost]
        return sum(any(each.when > since for each in _read(log)) for log in living if log)


def _logs(machine: Machine, model: str, process: str = "*") -> Iterable[Path]:
    return machine.folder.glob(f"ray/session_2*/logs/serve/requests_{model}_{process}.log")


def _read(log: Path) -> Iterator[Logged]:
    for line in log.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        if "request_id" in told:
            yield Logged(told["request_id"], told["code"], datetime.fromisoformat(told["time"]).timestamp(), log)


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A head and workers that have joined it; nothing is served yet."""
    with machines(1 + workers, folder) as (head, *others):
        _start_head(head)
        made = Cluster(head, others, folder)
        for worker in others:
            made.start_worker(worker)
        for worker in others:
            _await(worker)
        yield made


@contextmanager
def elastic_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A head alone, whose autoscaler rents workers when replicas find no room; each has room for one that takes 2
    CPUs."""
    from loadtest import cloud

    with machines(1 + workers, folder) as (head, *others):
        rented, config = folder / "rented", folder / "autoscaling.yaml"
        rented.mkdir()
        config.write_text(yaml.safe_dump(cloud.config(rented, head, others, _CPUS)))
        made = Cluster(head, others, folder)
        with cloud.renting(rented, others, made.start_worker):
            _start_head(head, f"--autoscaling-config={config}")
            yield made


def _start_head(head: Machine, *more: str) -> None:
    starting = ("--head", "--include-dashboard=false", "--num-cpus=0", f"--port={_GCS}")
    head.start(
        [str(_BIN / "ray"), "start", *starting, f"--node-ip-address={head.address}", *_NODE, *more],
        {**os.environ, **_ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    _await(head)


def _await(machine: Machine) -> None:
    def has_started() -> bool:
        assert machine.is_running, machine.log.read_text()
        return "Ray runtime started" in machine.log.read_text()

    wait_until(has_started, f"Ray on {machine.name} starts")
