"""`headwaiter serve --single-process` as a process of its own, in which Ray cannot be imported."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from headwaiter.client import Client, HeadwaiterError, Unavailable
from headwaiter.serving.config import load_config
from headwaiter.serving.instance import Instance, InstanceRegistry
from loadtest.service_process import free_ports
from tests.conftest import Packages
from tests.service.serving import sick_runtime
from tests.serving_kit import write_config, write_package

TIMEOUT_SECONDS = 60.0
WITHOUT_RAY = "import sys; sys.modules['ray'] = None; from headwaiter.cli.main import main; main()"
LONG = {"num_beams": 4, "max_new_tokens": 60}


class SingleProcessCommand:
    """Runs the command in a directory of its own and collects its output."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "serve.yaml"
        self.ports = free_ports("grpc", "http", "metrics")
        self._log = folder / "output.txt"
        self._environment = {**os.environ, "TMPDIR": str(folder)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def write(self, models: dict[str, Any]) -> None:
        write_config(self.file, {**{name: {"port": port} for name, port in self.ports.items()}, "models": models})

    def start(self, *options: str, single_process: bool = True) -> subprocess.Popen[bytes]:
        options = ("--single-process", *options) if single_process else options
        command = [sys.executable, "-c", WITHOUT_RAY, "serve", str(self.file), *options]
        return self.start_command(command)

    def start_command(self, command: list[str]) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        self._processes.append(process)
        return process

    def run(self, *options: str, single_process: bool = True) -> tuple[int, str]:
        """Start it, wait until it exits, and return the exit code and the output."""
        before = len(self.output())
        code = self.start(*options, single_process=single_process).wait(TIMEOUT_SECONDS)
        return code, self.output()[before:]

    def client(self) -> Client:
        return Client(f"127.0.0.1:{self.ports['grpc']}", timeout=TIMEOUT_SECONDS)

    def output(self) -> str:
        return self._log.read_text(encoding="utf-8") if self._log.exists() else ""

    def wait_for(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.output().count(text) >= times, self.output)

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(TIMEOUT_SECONDS)


def wait_until(condition: Callable[[], bool], describe: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, describe()
        time.sleep(0.02)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[SingleProcessCommand]:
    command = SingleProcessCommand(tmp_path)
    yield command
    command.end()


@pytest.fixture
def texts(packages: Packages) -> dict[str, Any]:
    return {"path": str(packages("bert", "fp32").package.folder)}


@pytest.fixture
def writer(packages: Packages) -> dict[str, Any]:
    return {"path": str(packages("gpt2", "fp32").package.folder), "max_sequences": 8}


def test_reload_and_stop_by_signals(command: SingleProcessCommand, texts: dict[str, Any]) -> None:
    command.write({"texts": texts | {"replicas": 3}})
    process = command.start()
    command.wait_for("python -c ")
    assert command.output().count("replicas and autoscale of texts are ignored") == 1
    with command.client() as client:
        assert client.classify("texts", text="ab").labels
        assert '"logger": "headwaiter.requests"' in command.output()

        # An invalid file is reported and changes nothing.
        command.write({"texts": texts | {"max_sequence": 4}})
        process.send_signal(signal.SIGHUP)
        command.wait_for("the closest valid key is max_sequences. Serving continues as before.")
        assert client.classify("texts", text="ab").labels

        # The same command reloads the running process.
        command.write({"texts": texts, "more": texts})
        assert command.run()[0] == 0
        command.wait_for(f"{command.file} is reloaded")
        assert "✓ texts (unchanged)" in command.output()
        assert {model.name for model in client.models()} == {"texts", "more"}

        # Ports cannot change.
        command.ports = free_ports("grpc", "http", "metrics")
        command.write({"texts": texts})
        code, output = command.run()
        assert code == 2
        assert f"differ from those of the running process {process.pid}" in output
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_SECONDS) == 0
    assert "✓ requests completed" in command.output()
    assert "Traceback" not in command.output()


def test_file_served_in_the_other_way_is_refused(
    command: SingleProcessCommand, texts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.write({"texts": texts})
    process = command.start()
    command.wait_for("python -c ")
    code, output = command.run(single_process=False)
    assert code == 2
    assert f"is served by process {process.pid} with --single-process; stop it, or use that option." in output
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_SECONDS) == 0

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = load_config(command.file).config
    registry = InstanceRegistry(command.file)
    assert registry.claim() is None
    registry.publish(Instance(7, "10.0.0.1:6379", "f00d", config.http.host, config.ports))
    code, output = command.run()
    assert code == 2
    assert "is served by process 7 on Ray; stop it, or leave out --single-process." in output


def test_second_signal_stops_at_once(command: SingleProcessCommand, writer: dict[str, Any]) -> None:
    command.write({"writer": writer | {"limits": {"max_queue_wait_ms": 60_000}}})
    process = command.start()
    command.wait_for("python -c ")
    errors: list[BaseException] = []

    def send_requests() -> None:
        with command.client() as client:
            try:
                while True:
                    client.generate("writer", ["ab"] * 256, timeout=5, **LONG)
            except Exception as error:
                errors.append(error)

    requests = [threading.Thread(target=send_requests) for _ in range(4)]
    for request in requests:
        request.start()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    command.wait_for("press Ctrl-C again")
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert process.wait(TIMEOUT_SECONDS) == 0
    assert time.monotonic() - started < 5
    for request in requests:
        request.join(TIMEOUT_SECONDS)
    assert "requests completed" not in command.output()
    assert [type(error) for error in errors] == [Unavailable] * 4
    assert "Traceback" not in command.output()


def test_model_that_fails_to_load_exits_1(command: SingleProcessCommand, tmp_path: Path) -> None:
    write_package(tmp_path / "models", "empty")
    command.write({"empty": {"path": "models/empty"}})
    code, output = command.run()
    assert code == 1
    assert "✗ empty did not start: " in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "options", [("--cluster",), ("--render",), ("--models-at", "/models"), ("--keys-at", "keys.txt")]
)
def test_options_for_ray_are_refused(
    command: SingleProcessCommand, texts: dict[str, Any], options: tuple[str, ...]
) -> None:
    command.write({"texts": texts})
    code, output = command.run(*options)
    assert (code, output.strip()) == (
        2,
        f"✗ {options[0]} is for Ray; leave out either {options[0]} or --single-process.",
    )


@pytest.mark.parametrize("options", [(), ("--check-ports",)])
def test_port_in_use_exits_2(command: SingleProcessCommand, texts: dict[str, Any], options: tuple[str, ...]) -> None:
    command.write({"texts": texts})
    (port,) = free_ports("grpc").values()
    with socket.create_server(("127.0.0.1", port)):
        code, output = command.run("--grpc-port", str(port), *options)
    assert code == 2
    assert re.match(f"✗ Port {port} is in use; .*--grpc-port", output)


def test_check_ports_of_free_ports_exits_0(command: SingleProcessCommand, texts: dict[str, Any]) -> None:
    command.write({"texts": texts})
    assert command.run("--check-ports") == (0, "")


def test_port_options_override_the_file(command: SingleProcessCommand, texts: dict[str, Any]) -> None:
    command.write({"texts": texts})
    original = yaml.safe_load(command.file.read_text())["grpc"]["port"]
    command.ports = free_ports("grpc", "http", "metrics")
    options = [option for name, port in command.ports.items() for option in (f"--{name}-port", str(port))]
    command.start(*options)
    command.wait_for("python -c ")
    assert command.ports["grpc"] != original
    with command.client() as client:
        assert client.classify("texts", text="ab").labels


class SickCommand(SingleProcessCommand):
    """With a runtime that fails or hangs while the file `fault` says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fault = folder / "fault"
        self._environment[sick_runtime.VARIABLE] = str(self.fault)

    def start(self, *options: str, single_process: bool = True) -> subprocess.Popen[bytes]:
        assert single_process
        command = [sys.executable, "-m", sick_runtime.__name__, "serve", str(self.file), "--single-process", *options]
        return self.start_command(command)


@pytest.fixture
def sick_command(tmp_path: Path) -> Iterator[SickCommand]:
    command = SickCommand(tmp_path)
    yield command
    command.end()


def test_hung_model_ends_process_with_its_cause(sick_command: SickCommand, texts: dict[str, Any]) -> None:
    sick_command.write({"texts": texts | {"run_timeout_s": 2}})
    process = sick_command.start()
    sick_command.wait_for("python -c ")
    with sick_command.client() as client:
        assert client.classify("texts", text="ab").labels
        sick_command.fault.write_text("hang")
        with pytest.raises(Unavailable):
            client.classify("texts", text="ab", timeout=30)
    assert process.wait(TIMEOUT_SECONDS) == 1
    output = sick_command.output()
    assert "✗ texts is hung: a run of the graph has not ended for 2 s; restart this process." in output
    assert "the engine of texts is unhealthy and must be replaced" in output


def test_failing_model_is_loaded_again_and_counted(sick_command: SickCommand, texts: dict[str, Any]) -> None:
    sick_command.write({"texts": texts})
    process = sick_command.start()
    sick_command.wait_for("python -c ")
    with sick_command.client() as client:
        sick_command.fault.write_text("fail")
        errors = []
        while not (errors and isinstance(errors[-1], Unavailable)):
            with pytest.raises(HeadwaiterError) as caught:
                client.classify("texts", text="ab", timeout=2)
            errors.append(caught.value)
        assert len(errors) <= 4, "three steps fail, then requests are rejected"
        wait_until(lambda: _status(sick_command, "/models/texts/readyz") == 503)
        assert _status(sick_command, "/models/texts/healthz") == _status(sick_command, "/healthz") == 503
        sick_command.wait_for("texts did not start: RuntimeError: simulated failure of the runtime")
        sick_command.fault.unlink()
        wait_until(lambda: _status(sick_command, "/models/texts/readyz") == 200)
        assert client.classify("texts", text="ab").labels
        assert _status(sick_command, "/healthz") == 200
    metrics = _get(f"http://127.0.0.1:{sick_command.ports['metrics']}/metrics")[1]
    assert 'headwaiter_engine_unhealthy_total{cause="failing",model="texts"} 1.0' in metrics
    assert 'headwaiter_model_start_failures_total{model="texts"}' in metrics
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_SECONDS) == 0


def _status(command: SingleProcessCommand, path: str) -> int:
    return _get(f"http://127.0.0.1:{command.ports['http']}{path}")[0]


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
