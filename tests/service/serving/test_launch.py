"""`headwaiter serve` on a real Ray. Each service is a separate process with its own ports and directories."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headwaiter.serving.cluster import root_cause
from headwaiter.serving.config import load_config, read_config
from headwaiter.serving.errors import PreconditionError
from headwaiter.serving.instance import Instance, InstanceRegistry
from headwaiter.serving.preflight import check_free_ports
from loadtest.service_process import free_ports
from tests.serving_kit import write_config, write_package

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 120.0  # the machine may be busy


def _wait_for(condition: Callable[[], Any], describe: Callable[[], str] = str) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.1)
    raise AssertionError(f"timed out: {describe()}")


class ServeProcess:
    """`headwaiter serve` in its own session, with its output."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "serve.yaml"
        self.grpc, self.http, self.metrics = free_ports("grpc", "http", "metrics").values()
        self._log = folder / "output.txt"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "TMPDIR": str(folder),
            "RAY_TMPDIR": str(folder),
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
            "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1",
        }

    def write(self, **models: dict[str, Any]) -> None:
        ports = {"grpc": {"port": self.grpc}, "http": {"port": self.http}, "metrics": {"port": self.metrics}}
        write_config(self.file, {**ports, "models": models})

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.service.serving.launch_kit", str(self.file), "local"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    def run(self) -> tuple[int, str]:
        """Start it, wait until it exits, and return the exit code and the output."""
        before = len(self.output())
        code = self.start().wait(TIMEOUT_SECONDS)
        return code, self.output()[before:]

    def status(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from headwaiter.cli.main import main; main()", "status", str(self.file)]
        return subprocess.run(
            [*command, *arguments], env=self._environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""

    def wait_for(self, text: str, times: int = 1) -> None:
        _wait_for(lambda: self.output().count(text) >= times, self.output)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=TIMEOUT_SECONDS) as reply:
            return json.load(reply)

    def remaining_processes(self) -> dict[int, str]:
        """Processes of these sessions that still run, by process id; reparented ones are included."""
        sessions = {process.pid for process in self._processes}
        listing = subprocess.run(
            ["ps", "-eo", "pid=,sid=,stat=,args="], capture_output=True, text=True, check=True, timeout=TIMEOUT_SECONDS
        )
        rows = (line.split(None, 3) for line in listing.stdout.splitlines())
        return {int(pid): args for pid, sid, state, args in rows if int(sid) in sessions and not state.startswith("Z")}

    def end(self) -> None:
        for pid in self.remaining_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.wait(TIMEOUT_SECONDS)


@pytest.fixture
def service() -> Iterator[ServeProcess]:
    """A service in a directory with a short path, because socket paths are limited to 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
    write_package(folder / "models", "one")
    write_package(folder / "models", "two", task="detection")
    write_package(folder / "models", "bad", source="fail the weights are damaged")
    process = ServeProcess(folder)
    yield process
    process.end()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_serve_lifecycle(service: ServeProcess) -> None:
    one, two = {"path": "models/one"}, {"path": "models/two"}
    service.write(one=one, two=two)
    process = service.start()
    service.wait_for("python -c ")

    # The printed addresses work.
    for text in (f"gRPC     localhost:{service.grpc}", "headwaiter call one translate", "curl http:"):
        assert text in service.output()
    assert [model["name"] for model in service.get("/")["models"]] == ["one", "two"]
    before = {name: service.get(f"/models/{name}") for name in ("one", "two")}
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), metadata=[("application", "one")], timeout=TIMEOUT_SECONDS)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING

    # The status has every model with its version, precision and replicas.
    status = service.status("--json")
    assert status.returncode == 0, status.stderr
    ready = {"phase": "ready", "precision": "fp32", "running_replicas": 1, "desired_replicas": 1, "reason": ""}
    assert json.loads(status.stdout)["models"] == [
        {"name": "one", "version": "1", **ready},
        {"name": "two", "version": "1", **ready},
    ]

    # A file that needs more CPUs than the running Ray has is reported and changes nothing.
    service.write(one=one, two={**two, "resources": {"cpus": 100}})
    process.send_signal(signal.SIGHUP)
    service.wait_for("two 200 (1 × 100, 1 more replica for the update)) and the running Ray has ")
    service.wait_for("Serving continues as before.")
    assert {name: service.get(f"/models/{name}") for name in ("one", "two")} == before

    # An invalid file is reported and changes nothing.
    service.write(one={**one, "max_sequence": 4})
    process.send_signal(signal.SIGHUP)
    service.wait_for("models.one.max_sequence is not a valid key; the closest valid key is max_sequences.")

    # A second `headwaiter serve` of the same file updates the changed models only.
    write_package(service.folder / "models", "one", version="2")
    service.write(one=one, two=two)
    code, output = service.run()
    assert code == 0, output
    assert re.search(r"two \(unchanged\)", output)
    after = {name: service.get(f"/models/{name}") for name in ("one", "two")}
    assert after["one"]["folder"].endswith("/one/2/fp32")
    assert after["one"]["process"] != before["one"]["process"]
    assert after["two"] == before["two"]

    # A model that fails to start is reported; its old replicas keep serving.
    write_package(service.folder / "models", "one", version="3", source="fail the weights are damaged")
    process.send_signal(signal.SIGHUP)
    service.wait_for("one did not start: RuntimeError: the weights are damaged;")
    assert service.get("/models/one") == after["one"]
    status = service.status()
    assert status.returncode == 1
    assert re.search(r"one +failed +3 +fp32 +1 of 1", status.stdout), status.stdout
    assert "\none: RuntimeError: the weights are damaged; the old replicas keep serving.\n" in status.stdout

    # Ongoing requests finish before the service stops, and no process remains.
    answers: list[str] = []
    request = threading.Thread(target=lambda: answers.append(service.get("/models/two/slow?seconds=3")))
    request.start()
    _wait_for(lambda: service.get("/models/two")["busy"], service.output)
    process.send_signal(signal.SIGTERM)
    request.join(TIMEOUT_SECONDS)
    assert answers == ["done"]
    assert process.wait(TIMEOUT_SECONDS) == 0, service.output()
    _wait_for(lambda: not service.remaining_processes(), lambda: str(service.remaining_processes()))
    assert "Traceback" not in service.output()


@pytest.mark.slow
def test_serve_failing_model_exits_1(service: ServeProcess) -> None:
    service.write(bad={"path": "models/bad"})

    code, output = service.run()

    assert code == 1
    assert "✗ bad did not start: RuntimeError: the weights are damaged;" in output
    assert "Traceback" not in output
    _wait_for(lambda: not service.remaining_processes(), lambda: str(service.remaining_processes()))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["Ray", "Serve"])
def test_serve_interrupted_during_start_exits_130(service: ServeProcess, phase: str) -> None:
    service.write(one={"path": "models/one"})
    process = service.start()
    if phase == "Serve":
        service.wait_for("✓ Ray")
    else:
        _wait_for(lambda: len(service.remaining_processes()) > 1, service.output)

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C

    assert process.wait(TIMEOUT_SECONDS) == 130, service.output()
    assert "Stopped before" in service.output()
    _wait_for(lambda: not service.remaining_processes(), lambda: str(service.remaining_processes()))


@pytest.mark.parametrize("section", ["grpc", "http", "metrics"])
def test_serve_port_in_use_exits_2(service: ServeProcess, section: str) -> None:
    service.write(one={"path": "models/one"})
    port = getattr(service, section)

    with socket.create_server(("127.0.0.1", port)):
        message = f"Port {port} is in use; free it, change {section}.port in {service.file}, or choose another with "
        message += f"--{section}-port (`make serve {section.upper()}_PORT=…`)."
        with pytest.raises(PreconditionError, match=re.escape(message)):
            check_free_ports(read_config(service.file), service.file)
        code, output = service.run()

    assert (code, output.strip()) == (2, f"✗ {message}")
    assert service.remaining_processes() == {}


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("", ""),
        ("Waiting for a node.\nMore details.", "Waiting for a node"),
        ("Traceback (most recent call last):\n  File …\nKeyError: 'a'\n", "KeyError: 'a'"),
        (
            "Error:\nray.exceptions.RayTaskError(X): …\nRuntimeError: Traceback …\nValueError: no\n\nmore",
            "ValueError: no",
        ),
        ("x\nheadwaiter.package.manifest.PackageError: a is missing; export again.\n", "a is missing; export again"),
        ("x\nAssertionError\n", "AssertionError"),
    ],
)
def test_root_cause(message: str, cause: str) -> None:
    assert root_cause(message) == cause


def test_status_without_service_says_how_to_start_it(service: ServeProcess) -> None:
    missing = service.status()
    assert (missing.returncode, missing.stderr) == (
        2,
        f"✗ {service.file} does not exist; give the configuration file of a service, or HOST:PORT.\n",
    )
    service.write(one={"path": "models/one"})
    stopped = service.status()
    assert (stopped.returncode, stopped.stderr) == (
        2,
        f"✗ {service.file} is not being served; `headwaiter serve {service.file}` starts it.\n",
    )


def test_instance_registry_finds_instance_that_is_starting(
    service: ServeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(service.folder))
    owner, reader = InstanceRegistry(service.file), InstanceRegistry(service.file)
    assert reader.find() is None
    assert owner.claim() is None
    with pytest.raises(PreconditionError, match="starting or stopping"):
        reader.find()
    instance = Instance(7, "10.0.0.1:6379", "f00d", "127.0.0.1", {}, is_ready=False)
    owner.publish(instance)
    assert reader.find() == instance
    with pytest.raises(PreconditionError, match="starting or stopping"):
        reader.claim()
    owner.publish(replace(instance, is_ready=True))
    assert reader.claim() == replace(instance, is_ready=True)


def test_instance_registry_allows_one_process_per_file(service: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(service.folder))
    service.write(one={"path": "models/one"})
    config = load_config(service.file).config
    instance = Instance(7, "10.0.0.1:6379", "f00d", config.http.host, config.ports)
    first, second, other = (
        InstanceRegistry(file) for file in (service.file, service.file, service.folder / "other.yaml")
    )

    assert first.claim() is None
    assert other.claim() is None
    with pytest.raises(PreconditionError, match="starting or stopping"):
        second.claim()
    first.publish(instance)
    assert second.claim() == instance
    instance.check_same_address(load_config(service.file))

    service.http, service.grpc = service.grpc, service.http
    service.write(one={"path": "models/one"})
    with pytest.raises(PreconditionError, match=f"host or ports .* process {instance.pid}; stop it"):
        instance.check_same_address(load_config(service.file))
