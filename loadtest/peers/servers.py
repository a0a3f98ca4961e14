"""The servers of the comparison, each in its own process, and their protocols."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from loadtest.peers.benchmark_models import BenchmarkModel
from loadtest.service_process import free_ports, running_service

FOLDER = Path(__file__).parent
_BUILD = Path("build/peers")
_START_SECONDS = 240
_STOP_SECONDS = 30
LABELS = 5  # top labels that are compared
_LOG_TAIL_CHARS = 600  # characters of the log in error messages


class PeerError(Exception):
    """A peer cannot be measured; the message states the cause."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A started server; `address` is a URL, or HOST:PORT for gRPC."""

    address: str
    root: int  # process id of the root of its process tree
    startup_seconds: float

    def memory_mb(self) -> float:
        """Return the proportional set size of all its processes."""
        total = 0.0
        for process in _process_tree(self.root):
            with suppress(psutil.Error):
                total += process.memory_full_info().pss / 2**20
        return total


class BenchmarkServer(ABC):
    name: str
    description: str
    settings: str
    protocol: str  # key of PROTOCOLS, or "headwaiter grpc"

    @abstractmethod
    def supports(self, task: str) -> bool: ...

    @abstractmethod
    def build(self) -> None:
        """Build the server's environment if it has its own."""

    @abstractmethod
    def running(self, benchmark_model: BenchmarkModel, threads: int, scratch: Path) -> Any:
        """Return a context manager that yields a RunningServer."""


class HeadwaiterServer(BenchmarkServer):
    description = "Headwaiter"

    def __init__(self, transport: str) -> None:
        self.name, self.protocol = f"headwaiter {transport}", f"headwaiter {transport}"
        self.settings = f"`headwaiter serve`, one replica with all cores, 64 slots, over {transport}"

    def supports(self, task: str) -> bool:  # noqa: ARG002
        return True

    def build(self) -> None:
        """Nothing to build: it runs in this environment."""

    @contextmanager
    def running(self, benchmark_model: BenchmarkModel, threads: int, scratch: Path) -> Iterator[RunningServer]:
        limits = {"max_queue_wait_ms": 60_000}  # the peers do not reject requests
        model = {"path": str(benchmark_model.package.resolve()), "resources": {"cpus": threads}, "limits": limits}
        started = time.perf_counter()
        with running_service(scratch, {benchmark_model.name: model}) as service:
            address = service.grpc if self.protocol.endswith("grpc") else service.http
            yield RunningServer(address, service.process.pid, time.perf_counter() - started)


class PeerServer(BenchmarkServer):
    """A peer, defined by a directory with peer.toml, requirements.txt and serve.py."""

    def __init__(self, name: str, folder: Path = FOLDER, build: Path = _BUILD) -> None:
        self.name = name
        self._folder, self._home = folder / name, build / name
        config = tomllib.loads((self._folder / "peer.toml").read_text(encoding="utf-8"))
        self.description, self.settings, self._tasks = config["description"], config["settings"], config["tasks"]
        self.protocol = config.get("protocol", "plain")

    def supports(self, task: str) -> bool:
        return task in self._tasks

    def build(self) -> None:
        requirements = (self._folder / "requirements.txt").read_text(encoding="utf-8")
        marker = self._home / "requirements.txt"
        if marker.is_file() and marker.read_text(encoding="utf-8") == requirements:
            return
        pip = [str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(self._home)],
            [*pip, "-r", str(self._folder / "requirements.txt")],
        ):
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode:
                cause = next((line for line in reversed(result.stderr.splitlines()) if line.strip()), "no output")
                raise PeerError(
                    f"the environment of {self.name} cannot be built ({cause.strip()}); use --peers to omit it"
                )
        marker.write_text(requirements, encoding="utf-8")

    @cached_property
    def _python(self) -> Path:
        return (self._home / "bin" / "python").absolute()

    @contextmanager
    def running(self, benchmark_model: BenchmarkModel, threads: int, scratch: Path) -> Iterator[RunningServer]:
        port = free_ports("http")["http"]
        options = {
            "task": benchmark_model.task,
            "model": benchmark_model.folder.absolute(),
            "port": port,
            "threads": threads,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        log = scratch / f"{self.name}.log"
        started = time.perf_counter()
        with log.open("w") as output:
            process = subprocess.Popen(
                [str(self._python), str((self._folder / "serve.py").absolute()), *arguments],
                env=os.environ | {"PYTHONPATH": str((FOLDER / "common").absolute()), "OMP_NUM_THREADS": str(threads)},
                stdout=output,
                stderr=output,
                cwd=scratch,
                start_new_session=True,
            )
        try:
            address = f"http://127.0.0.1:{port}"
            _wait_until_ready(self, process, address, benchmark_model, log)
            yield RunningServer(address, process.pid, time.perf_counter() - started)
        finally:
            _terminate(process)


def _wait_until_ready(
    peer: PeerServer, process: subprocess.Popen[bytes], address: str, benchmark_model: BenchmarkModel, log: Path
) -> None:
    path, body = PROTOCOLS[peer.protocol](benchmark_model, SAMPLES[benchmark_model.task])
    request = urllib.request.Request(f"{address}{path}", body, {"content-type": "application/json"})
    end = time.monotonic() + _START_SECONDS
    while True:
        with suppress(OSError):
            urllib.request.urlopen(request, timeout=_START_SECONDS).read()
            return
        if process.poll() is not None or time.monotonic() > end:
            tail = log.read_text(errors="replace").strip()[-_LOG_TAIL_CHARS:]
            raise PeerError(f"{peer.name} did not start; the end of its log: {tail}")
        time.sleep(0.1)


def _plain(benchmark_model: BenchmarkModel, content: str) -> tuple[str, bytes]:
    return "/predict", json.dumps({_FIELDS[benchmark_model.task]: content}).encode()


def _kserve(_: BenchmarkModel, content: str) -> tuple[str, bytes]:
    tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "BYTES", "data": [content]}
    return "/v2/models/predict/infer", json.dumps({"inputs": [tensor]}).encode()


def _headwaiter(benchmark_model: BenchmarkModel, content: str) -> tuple[str, bytes]:
    method, body = _METHODS[benchmark_model.task]
    return f"/models/{benchmark_model.name}/{method}", json.dumps(
        {_FIELDS[benchmark_model.task]: content} | body
    ).encode()


def parse_answer(protocol: str, reply: Any) -> str:
    """Return the text, or the indices of the top labels."""
    match protocol:
        case "plain":
            return str(reply["answer"])
        case "kserve":
            return str(reply["outputs"][0]["data"][0])
    result = reply["results"][0]
    if "hypotheses" in result:
        return str(result["hypotheses"][0]["text"])
    return " ".join(str(label["index"]) for label in result["labels"])


_FIELDS = {"translation": "text", "images": "image"}
_METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "translation": ("translate", {"decoding": {"num_beams": 1}}),
    "images": ("classify", {"top_k": LABELS}),
}
PROTOCOLS = {"plain": _plain, "kserve": _kserve, "headwaiter http": _headwaiter}


def _samples() -> dict[str, str]:
    from loadtest.overhead.request_senders import sample_jpegs

    return {"translation": "今天天气很好。", "images": base64.b64encode(sample_jpegs()[0]).decode()}


SAMPLES = _samples()


def peer_names() -> tuple[str, ...]:
    return tuple(sorted(file.parent.name for file in FOLDER.glob("*/peer.toml")))


def servers(names: list[str]) -> list[BenchmarkServer]:
    """Return Headwaiter over both transports and the named peers; raise PeerError for an unknown name."""
    if unknown := sorted(set(names) - set(peer_names())):
        raise PeerError(f"unknown peer: {', '.join(unknown)}; available: {', '.join(peer_names())}")
    return [HeadwaiterServer("grpc"), HeadwaiterServer("http"), *(PeerServer(name) for name in names)]


def _process_tree(root: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(root)
    except psutil.Error:
        return []
    return [process, *process.children(recursive=True)]


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """Stop the process and all its descendants, including those in other process groups."""
    processes = _process_tree(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    for descendant in processes:
        with suppress(psutil.Error):
            descendant.kill()
    process.wait()
