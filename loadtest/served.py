"""`headwaiter serve` in a process of its own, on free ports, for whoever calls it over real sockets."""

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

from service.client import Client

START_SECONDS = 240
STOP_SECONDS = 120


@dataclass
class Service:
    file: Path
    ports: dict[str, int]
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

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
        """Process ids of a model's replicas, those of this service only."""
        wanted = f"ray::ServeReplica:{model}:"
        return [pid for pid in _processes() if title(pid).startswith(wanted) and self.process.pid in _ancestors(pid)]

    def processes(self) -> list[int]:
        """Of the whole service, replicas included."""
        return [pid for pid in _processes() if pid == self.process.pid or self.process.pid in _ancestors(pid)]

    def change(self, models: dict[str, Any]) -> None:
        """Writes the file anew and deploys it, as a second `headwaiter serve` does."""
        write(self.file, self.ports, models)
        done = subprocess.run(_command(self.file), capture_output=True, text=True, timeout=START_SECONDS)
        assert done.returncode == 0, done.stdout + done.stderr

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)


def write(file: Path, ports: dict[str, int], models: dict[str, Any], **more: Any) -> None:
    content = {name: {"port": port} for name, port in ports.items()} | {"models": models} | more
    file.write_text(yaml.safe_dump(content))


@contextmanager
def serving(
    folder: Path,
    models: dict[str, Any],
    *,
    program: Sequence[str] | None = None,
    python: Path = Path(sys.executable),
    **more: Any,
) -> Iterator[Service]:
    """A service that answers; at the end it has gone, and all its processes. `program` in place of `headwaiter serve`
    is given the file, and `local`; `python` is of the environment whose `headwaiter` serves."""
    file, ports = folder / "serve.yaml", free_ports("grpc", "http", "metrics")
    write(file, ports, models, **more)
    process = subprocess.Popen(
        _command(file, python) if program is None else [*program[:-1], str(file), "local", program[-1]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    service, ready = Service(file, ports, process), threading.Event()
    threading.Thread(target=_listen, args=(service, ready), daemon=True).start()
    try:
        _await_start(service, ready)
        yield service
    finally:
        if process.poll() is None:
            service.stop()


def _listen(service: Service, ready: threading.Event) -> None:
    assert service.process.stdout is not None
    for line in service.process.stdout:
        service.lines.append(line.rstrip())
        if line.startswith("metrics"):
            ready.set()


def _await_start(service: Service, ready: threading.Event) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready.wait(0.2):
        said = "\n".join(service.lines)
        assert service.process.poll() is None, f"the service ended with {service.process.returncode}:\n{said}"
        assert time.monotonic() < deadline, f"the service did not start:\n{said}"


def _command(file: Path, python: Path = Path(sys.executable)) -> list[str]:
    return [str(python.with_name("headwaiter")), "serve", str(file)]


def free_ports(*names: str) -> dict[str, int]:
    """Below those that the system gives to outgoing connections, one of which could take a port that was free."""
    ports: dict[str, int] = {}
    for name in names:
        while name not in ports:
            port = random.randrange(10_000, 20_000)
            with suppress(OSError):
                socket.create_server(("127.0.0.1", port)).close()
                ports[name] = port
    return ports


def pin(pid: int, cores: set[int]) -> None:
    """All threads of a process; those it starts later follow."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(ProcessLookupError):  # it ended in the meantime
            os.sched_setaffinity(int(thread), cores)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _ancestors(pid: int) -> set[int]:
    found = set()
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.add(pid)
    return found
