"""Processes that record metrics as replicas do, and a client of the metrics endpoint."""

from __future__ import annotations

import multiprocessing
import os
from email.message import Message
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from headwaiter.serving.metrics import open_metrics
from headwaiter.serving.metrics.definitions import PREFIX

HOST = "127.0.0.1"
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _replica(folder: Path, port: int, commands: Connection, pid: int | None) -> None:
    """Call the methods of ModelMetrics that are received until an empty command arrives."""
    if pid is not None:
        os.getpid = lambda: pid
    exporter = open_metrics(folder, port, host=HOST)
    metrics = exporter.for_model("marian")
    commands.send("ready")
    while command := commands.recv():
        name, *arguments = command
        getattr(metrics, name)(*arguments)
        commands.send("done")
    metrics.close()
    exporter.close()


class Replica:
    def __init__(self, folder: Path, port: int, pid: int | None = None) -> None:
        self._commands, remote = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_replica, args=(folder, port, remote, pid))
        self.process.start()
        remote.close()
        self._expect("ready")

    def do(self, *command: Any) -> None:
        self._commands.send(command)
        self._expect("done")

    def end(self) -> None:
        self._commands.send(())
        self.process.join(60)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def _expect(self, reply: str) -> None:
        assert self._commands.poll(60), "the replica does not reply"
        assert self._commands.recv() == reply


def fetch(port: int, path: str = "/metrics", *, method: str = "GET", accept: str = "") -> tuple[int, Message, str]:
    connection = HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(method, path, headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def parse_samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def scrape(port: int) -> Samples:
    status, _, body = fetch(port)
    assert status == 200
    return parse_samples(body)


def value(samples: Samples, name: str, model: str = "marian", **labels: str) -> float | None:
    return samples.get((PREFIX + name, frozenset((labels | {"model": model}).items())))


def translate_count(samples: Samples, code: str = "OK") -> float | None:
    return value(samples, "requests_total", method="Translate", code=code)
