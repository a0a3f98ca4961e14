"""Run `headwaiter serve` in a separate process on free ports, for benchmarks and tests over real sockets."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from headwaiter.client import Client

START_SECONDS = 240
STOP_SECONDS = 120
SINGLE_PROCESS = ("--single-process",)
"""Options that serve without Ray, in about a second."""


@dataclass
class ServiceProcess:
    file: Path
    ports: dict[str, int]
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    options: Sequence[str] = ()

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.ports['grpc']}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"

    @property
    def metrics(self) -> str:
        return f"http://127.0.0.1:{self.ports['metrics']}/metrics"

    def client(self, **options: Any) -> Client:
        return Client(self.grpc, **options)

    def replicas(self, model: str) -> list[int]:
        """Return the process ids of a model's replicas, limited to this service."""
        title = f"ray::ServeReplica:{model}:"
        return [
            pid for pid in _processes() if process_title(pid).startswith(title) and self.process.pid in _ancestors(pid)
        ]

    def processes(self) -> list[int]:
        """Return the process ids of the whole service, replicas included."""
        return [pid for pid in _processes() if pid == self.process.pid or self.process.pid in _ancestors(pid)]

    def change(self, models: dict[str, Any]) -> None:
        """Rewrite the configuration and deploy it with a second `headwaiter serve`."""
        write_config(self.file, self.ports, models)
        result = subprocess.run(
            serve_command(self.file, self.options), capture_output=True, text=True, timeout=START_SECONDS
        )
        assert result.returncode == 0, result.stdout + result.stderr

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


def write_config(file: Path, ports: dict[str, int], models: dict[str, Any], **more: Any) -> None:
    content = {name: {"port": port} for name, port in ports.items()} | {"models": models} | more
    file.write_text(yaml.safe_dump(content))


@contextmanager
def running_service(
    folder: Path,
    models: dict[str, Any],
    *,
    program: Sequence[str] | None = None,
    options: Sequence[str] = (),
    python: Path = Path(sys.executable),
    **more: Any,
) -> Iterator[ServiceProcess]:
    """Start a service, yield it when it is ready, and stop it with all its processes at the end.

    `program` replaces `headwaiter serve`; the configuration file and `local` are inserted before its last argument.
    `options` are options of `headwaiter serve`.
    `python` selects the environment whose `headwaiter` runs. Remaining keywords are added to the configuration.
    """
    file, ports = folder / "serve.yaml", free_ports("grpc", "http", "metrics")
    write_config(file, ports, models, **more)
    process = subprocess.Popen(
        serve_command(file, options, python) if program is None else [*program[:-1], str(file), "local", program[-1]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    service, ready = ServiceProcess(file, ports, process, options=options), threading.Event()
    threading.Thread(target=_read_output, args=(service, ready), daemon=True).start()
    try:
        _wait_until_ready(service, ready)
        yield service
    finally:
        if process.poll() is None:
            service.stop()


def _read_output(service: ServiceProcess, ready: threading.Event) -> None:
    assert service.process.stdout is not None
    for line in service.process.stdout:
        service.lines.append(line.rstrip())
        if line.startswith("metrics"):
            ready.set()


def _wait_until_ready(service: ServiceProcess, ready: threading.Event) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready.wait(0.2):
        output = "\n".join(service.lines)
        assert service.process.poll() is None, f"the service exited with {service.process.returncode}:\n{output}"
        assert time.monotonic() < deadline, f"the service did not start within {START_SECONDS} s:\n{output}"


def serve_command(file: Path, options: Sequence[str], python: Path = Path(sys.executable)) -> list[str]:
    """Return the command line of `headwaiter serve`."""
    return [str(python.with_name("headwaiter")), "serve", str(file), *options]


def free_ports(*names: str) -> dict[str, int]:
    """Return free ports below the ephemeral range, so that no outgoing connection takes one before it is bound."""
    ports: dict[str, int] = {}
    for name in names:
        while name not in ports:
            port = random.randrange(10_000, 20_000)
            with suppress(OSError):
                socket.create_server(("127.0.0.1", port)).close()
                ports[name] = port
    return ports


def pin_to_cores(pid: int, cores: set[int]) -> None:
    """Pin all threads of a process; threads it starts later inherit the affinity."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(thread), cores)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def process_title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _ancestors(pid: int) -> set[int]:
    ancestors = set()
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        ancestors.add(pid)
    return ancestors
