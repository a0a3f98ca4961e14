"""Who is compared: a server in a process of its own, and how it is asked."""

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

from loadtest.peers.weights import Subject
from loadtest.served import free_ports, serving

FOLDER = Path(__file__).parent
_BUILD = Path("build/peers")
_START_SECONDS = 240
_STOP_SECONDS = 30
LABELS = 5  # likeliest ones that are compared
_LAST_WORDS = 600  # characters of a log that a sentence ends with


class PeerError(Exception):
    """A peer cannot take part; the message says why and what would be right."""


@dataclass(frozen=True, slots=True)
class Running:
    """`address` is a URL, or of gRPC a host and port."""

    address: str
    root: int  # process, whose children are its own
    started_seconds: float

    def memory_mb(self) -> float:
        """Of all its processes, what they share counted once."""
        whole = 0.0
        for process in _family(self.root):
            with suppress(psutil.Error):
                whole += process.memory_full_info().pss / 2**20
        return whole


class Entrant(ABC):
    name: str
    what: str
    settings: str
    dialect: str  # how it is asked

    @abstractmethod
    def does(self, task: str) -> bool: ...

    @abstractmethod
    def build(self) -> None:
        """Its environment, where it has one of its own."""

    @abstractmethod
    def running(self, subject: Subject, threads: int, scratch: Path) -> Any:
        """A context manager with `Running`."""


class Headwaiter(Entrant):
    what = "Headwaiter"

    def __init__(self, way: str) -> None:
        self.name, self.dialect = f"headwaiter {way}", f"headwaiter {way}"
        self.settings = f"`headwaiter serve`, one replica with all cores, 64 rows, over {way}"

    def does(self, task: str) -> bool:  # noqa: ARG002
        return True

    def build(self) -> None:
        """It is at home here."""

    @contextmanager
    def running(self, subject: Subject, threads: int, scratch: Path) -> Iterator[Running]:
        limits = {"wait_ms": 60_000}  # peers refuse nobody
        model = {"path": str(subject.package.resolve()), "resources": {"cpus": threads}, "limits": limits}
        begun = time.perf_counter()
        with serving(scratch, {subject.name: model}) as service:
            address = service.grpc if self.dialect.endswith("grpc") else service.http
            yield Running(address, service.process.pid, time.perf_counter() - begun)


class Peer(Entrant):
    """A folder with peer.toml, requirements.txt and serve.py."""

    def __init__(self, name: str, folder: Path = FOLDER, build: Path = _BUILD) -> None:
        self.name = name
        self._folder, self._home = folder / name, build / name
        about = tomllib.loads((self._folder / "peer.toml").read_text(encoding="utf-8"))
        self.what, self.settings, self._tasks = about["what"], about["settings"], about["tasks"]
        self.dialect = about.get("dialect", "plain")

    def does(self, task: str) -> bool:
        return task in self._tasks

    def build(self) -> None:
        wanted = (self._folder / "requirements.txt").read_text(encoding="utf-8")
        mark = self._home / "requirements.txt"
        if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
            return
        pip = [str(self._python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(self._home)],
            [*pip, "-r", str(self._folder / "requirements.txt")],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "nothing was said")
                raise PeerError(
                    f"the environment of {self.name} cannot be built ({said.strip()}); --peers leaves it out"
                )
        mark.write_text(wanted, encoding="utf-8")

    @cached_property
    def _python(self) -> Path:
        return (self._home / "bin" / "python").absolute()

    @contextmanager
    def running(self, subject: Subject, threads: int, scratch: Path) -> Iterator[Running]:
        port = free_ports("http")["http"]
        told = {"task": subject.task, "model": subject.folder.absolute(), "port": port, "threads": threads}
        arguments = [part for name, value in told.items() for part in (f"--{name}", str(value))]
        log = scratch / f"{self.name}.log"
        begun = time.perf_counter()
        with log.open("w") as said:
            process = subprocess.Popen(
                [str(self._python), str((self._folder / "serve.py").absolute()), *arguments],
                env=os.environ | {"PYTHONPATH": str((FOLDER / "common").absolute()), "OMP_NUM_THREADS": str(threads)},
                stdout=said,
                stderr=said,
                cwd=scratch,
                start_new_session=True,
            )
        try:
            address = f"http://127.0.0.1:{port}"
            _await_answer(self, process, address, subject, log)
            yield Running(address, process.pid, time.perf_counter() - begun)
        finally:
            _end(process)


def _await_answer(peer: Peer, process: subprocess.Popen[bytes], address: str, subject: Subject, log: Path) -> None:
    path, body = DIALECTS[peer.dialect](subject, SAMPLES[subject.task])
    request = urllib.request.Request(f"{address}{path}", body, {"content-type": "application/json"})
    end = time.monotonic() + _START_SECONDS
    while True:
        with suppress(OSError):
            urllib.request.urlopen(request, timeout=_START_SECONDS).read()
            return
        if process.poll() is not None or time.monotonic() > end:
            words = log.read_text(errors="replace").strip()[-_LAST_WORDS:]
            raise PeerError(f"{peer.name} did not start; its last words: {words}")
        time.sleep(0.1)


def _plain(subject: Subject, content: str) -> tuple[str, bytes]:
    return "/predict", json.dumps({_FIELDS[subject.task]: content}).encode()


def _kserve(_: Subject, content: str) -> tuple[str, bytes]:
    tensor = {"name": "INPUT", "shape": [1, 1], "datatype": "BYTES", "data": [content]}
    return "/v2/models/predict/infer", json.dumps({"inputs": [tensor]}).encode()


def _headwaiter(subject: Subject, content: str) -> tuple[str, bytes]:
    verb, body = _VERBS[subject.task]
    return f"/models/{subject.name}/{verb}", json.dumps({_FIELDS[subject.task]: content} | body).encode()


def answer_of(dialect: str, reply: Any) -> str:
    """The text, or the likeliest labels' indices."""
    match dialect:
        case "plain":
            return str(reply["answer"])
        case "kserve":
            return str(reply["outputs"][0]["data"][0])
    result = reply["results"][0]
    if "hypotheses" in result:
        return str(result["hypotheses"][0]["text"])
    return " ".join(str(label["index"]) for label in result["labels"])


_FIELDS = {"translation": "text", "images": "image"}
_VERBS: dict[str, tuple[str, dict[str, Any]]] = {
    "translation": ("translate", {"decoding": {"beams": 1}}),
    "images": ("classify", {"top_k": LABELS}),
}
DIALECTS = {"plain": _plain, "kserve": _kserve, "headwaiter http": _headwaiter}


def _samples() -> dict[str, str]:
    from loadtest.senders import pictures

    return {"translation": "今天天气很好。", "images": base64.b64encode(pictures()[0]).decode()}


SAMPLES = _samples()
PEERS = tuple(sorted(each.parent.name for each in FOLDER.glob("*/peer.toml")))


def entrants(names: list[str]) -> list[Entrant]:
    """Headwaiter, and the peers of these names."""
    if unknown := sorted(set(names) - set(PEERS)):
        raise PeerError(f"there is no peer {', '.join(unknown)}; there are {', '.join(PEERS)}")
    return [Headwaiter("grpc"), Headwaiter("http"), *(Peer(name) for name in names)]


def _family(root: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(root)
    except psutil.Error:
        return []
    return [process, *process.children(recursive=True)]


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started, whichever group they are in."""
    family = _family(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_SECONDS)
    for each in family:
        with suppress(psutil.Error):
            each.kill()
    process.wait()
