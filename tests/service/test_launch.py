"""`headwaiter serve` on a real Ray: each service is a process of its own, with ports and folders of its own."""

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
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.served import free_ports
from service.config import load
from service.instance import Instance, Register
from service.launch import RefusedError, cause, clear_haproxy, demand_free_ports
from tests.serving_kit import write_config, write_package

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0  # seconds; the machine may be busy


def _eventually(holds: Callable[[], Any], what: Callable[[], str] = str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := holds():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited in vain: {what()}")


class Started:
    """A `headwaiter serve` in a session of its own, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "serve.yaml"
        self.grpc, self.http, self.metrics = free_ports("grpc", "http", "metrics").values()
        self._log = folder / "output.txt"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
            "RAY_TMPDIR": str(folder),
            "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
            "RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1",
        }

    def write(self, **models: dict[str, Any]) -> None:
        ports = {"grpc": {"port": self.grpc}, "http": {"port": self.http}, "metrics": {"port": self.metrics}}
        write_config(self.file, {**ports, "models": models})

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.service.launch_kit", str(self.file), "local"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        self._processes.append(process)
        return process

    def run(self) -> tuple[int, str]:
        """Starts it and waits for its end; returns what it said."""
        before = len(self.said())
        code = self.start().wait(PATIENCE)
        return code, self.said()[before:]

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""

    def wait_for(self, text: str, times: int = 1) -> None:
        _eventually(lambda: self.said().count(text) >= times, self.said)

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=PATIENCE) as reply:
            return json.load(reply)

    def left(self) -> dict[int, str]:
        """Processes of these sessions, whoever their parent is by now."""
        sessions = {process.pid for process in self._processes}
        listing = subprocess.run(["ps", "-eo", "pid=,sid=,stat=,args="], capture_output=True, text=True, check=True)
        rows = (line.split(None, 3) for line in listing.stdout.splitlines())
        return {int(pid): args for pid, sid, state, args in rows if int(sid) in sessions and not state.startswith("Z")}

    def end(self) -> None:
        for process in self.left():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for started in self._processes:
            started.wait()


@pytest.fixture
def started() -> Iterator[Started]:
    """In a folder with a short name, as sockets need."""
    folder = Path(tempfile.mkdtemp(prefix="hw", dir="/tmp"))
    write_package(folder / "models", "one")
    write_package(folder / "models", "two", task="detection")
    write_package(folder / "models", "bad", source="fail the weights are damaged")
    service = Started(folder)
    yield service
    service.end()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_a_life(started: Started) -> None:
    one, two = {"path": "models/one"}, {"path": "models/two"}
    started.write(one=one, two=two)
    process = started.start()
    started.wait_for("python -c ")

    # It says how it is reached, and it is reached so.
    for text in (f"gRPC     localhost:{started.grpc}", "headwaiter call one translate", "curl http:"):
        assert text in started.said()
    assert [each["name"] for each in started.get("/")["models"]] == ["one", "two"]
    before = {name: started.get(f"/models/{name}") for name in ("one", "two")}
    with grpc.insecure_channel(f"127.0.0.1:{started.grpc}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        reply = stub.Check(health_pb2.HealthCheckRequest(), metadata=[("application", "one")], timeout=PATIENCE)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING

    # A file that is wrong is told, and nothing changes.
    started.write(one={**one, "rowz": 4})
    process.send_signal(signal.SIGHUP)
    started.wait_for("models.one.rowz is not a key; rows is. Serving goes on as before.")

    # Started again with the same file, it changes what changed and leaves the rest alone.
    write_package(started.folder / "models", "one", version="2")
    started.write(one=one, two=two)
    code, said = started.run()
    assert code == 0, said
    assert re.search(r"two \(unchanged\)", said)
    after = {name: started.get(f"/models/{name}") for name in ("one", "two")}
    assert after["one"]["folder"].endswith("/one/2/fp32")
    assert after["one"]["process"] != before["one"]["process"]
    assert after["two"] == before["two"]

    # A model that does not start is told; its old replicas go on.
    write_package(started.folder / "models", "one", version="3", source="fail the weights are damaged")
    process.send_signal(signal.SIGHUP)
    started.wait_for("one did not start: RuntimeError: the weights are damaged;")
    assert started.get("/models/one") == after["one"]

    # What was asked is answered before it stops, and nothing is left.
    answers: list[str] = []
    asking = threading.Thread(target=lambda: answers.append(started.get("/models/two/slow?seconds=3")))
    asking.start()
    _eventually(lambda: started.get("/models/two")["busy"], started.said)
    process.send_signal(signal.SIGTERM)
    asking.join(PATIENCE)
    assert answers == ["done"]
    assert process.wait(PATIENCE) == 0, started.said()
    _eventually(lambda: not started.left(), lambda: str(started.left()))
    assert "Traceback" not in started.said()


@pytest.mark.slow
def test_a_model_that_does_not_start(started: Started) -> None:
    started.write(bad={"path": "models/bad"})

    code, said = started.run()

    assert code == 1
    assert "✗ bad did not start: RuntimeError: the weights are damaged; the logs are in" in said
    assert "Traceback" not in said
    _eventually(lambda: not started.left(), lambda: str(started.left()))


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["Ray", "Serve"])
def test_stopped_while_it_starts(started: Started, moment: str) -> None:
    started.write(one={"path": "models/one"})
    process = started.start()
    if moment == "Serve":
        started.wait_for("✓ Ray")
    else:
        _eventually(lambda: len(started.left()) > 1, started.said)

    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it

    assert process.wait(PATIENCE) == 130, started.said()
    assert "Stopped before it was ready." in started.said()
    _eventually(lambda: not started.left(), lambda: str(started.left()))


@pytest.mark.parametrize("place", ["grpc", "http", "metrics"])
def test_a_port_in_use(started: Started, place: str) -> None:
    started.write(one={"path": "models/one"})
    port = getattr(started, place)

    with socket.create_server(("127.0.0.1", port)):
        sentence = f"Port {port} is in use; free it or change {place}.port in {started.file}."
        with pytest.raises(RefusedError, match=re.escape(sentence)):
            demand_free_ports(load(started.file))
        code, said = started.run()

    assert (code, said.strip()) == (2, f"✗ {sentence}")
    assert started.left() == {}


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("", ""),
        ("It waits for a node.\nMore about it.", "It waits for a node"),
        ("Traceback (most recent call last):\n  File …\nKeyError: 'a'\n", "KeyError: 'a'"),
        (
            "Error:\nray.exceptions.RayTaskError(X): …\nRuntimeError: Traceback …\nValueError: no\n\nmore",
            "ValueError: no",
        ),
        ("x\nservice.package.PackageError: a is missing; export again.\n", "a is missing; export again"),
        ("x\nAssertionError\n", "AssertionError"),
    ],
)
def test_cause(message: str, sentence: str) -> None:
    assert cause(message) == sentence


def test_one_process_serves_a_file(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(started.folder))
    started.write(one={"path": "models/one"})
    config = load(started.file).config
    instance = Instance(7, "10.0.0.1:6379", "f00d", config.http.host, config.ports)
    first, second, other = (Register(file) for file in (started.file, started.file, started.folder / "other.yaml"))

    assert first.running() is None
    assert other.running() is None
    with pytest.raises(RefusedError, match="is starting or stopping"):
        second.running()
    first.enter(instance)
    assert second.running() == instance
    instance.demand_same_address(load(started.file))

    started.http, started.grpc = started.grpc, started.http
    started.write(one={"path": "models/one"})
    with pytest.raises(RefusedError, match="host and ports cannot change while it runs"):
        instance.demand_same_address(load(started.file))


def test_the_proxy_of_a_killed_service_is_ended(started: Started) -> None:
    def proxy(node: str) -> subprocess.Popen[bytes]:
        waits = [sys.executable, "-c", "import time; time.sleep(600)"]
        return subprocess.Popen([*waits, "-f", f"/tmp/haproxy-serve/{node}/haproxy.cfg"])

    ours, other = proxy(started.folder.name), proxy(f"{started.folder.name}-other")
    try:
        ending = threading.Thread(target=clear_haproxy, args=(started.folder.name,))
        ending.start()

        assert ours.wait(PATIENCE) == -signal.SIGTERM
        ending.join(PATIENCE)
        assert other.poll() is None
    finally:
        for each in (ours, other):
            each.kill()
            each.wait()
