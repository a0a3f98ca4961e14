"""Processes that count as replicas do, and the page that is read of them."""

from __future__ import annotations

import multiprocessing
import os
from email.message import Message
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from service.metrics import open_metrics
from service.metrics.table import PREFIX

HOST = "127.0.0.1"
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _replica(folder: Path, port: int, orders: Connection, pid: int | None) -> None:
    """Does what it is told, until it is told nothing or killed."""
    if pid is not None:
        os.getpid = lambda: pid
    metrics = open_metrics(folder, port, host=HOST)
    model = metrics.of("marian")
    orders.send("ready")
    while order := orders.recv():
        name, *arguments = order
        getattr(model, name)(*arguments)
        orders.send("done")
    model.close()
    metrics.close()


class Replica:
    def __init__(self, folder: Path, port: int, pid: int | None = None) -> None:
        self._orders, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_replica, args=(folder, port, theirs, pid))
        self.process.start()
        theirs.close()
        self._expect("ready")

    def do(self, *order: Any) -> None:
        self._orders.send(order)
        self._expect("done")

    def end(self) -> None:
        self._orders.send(())
        self.process.join(60)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def _expect(self, word: str) -> None:
        assert self._orders.poll(60), "the replica does not answer"
        assert self._orders.recv() == word


def fetch(port: int, path: str = "/metrics", *, verb: str = "GET", accept: str = "") -> tuple[int, Message, str]:
    connection = HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(verb, path, headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def parsed(page: str) -> Samples:
    families = text_string_to_metric_families(page)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def samples(port: int) -> Samples:
    status, _, page = fetch(port)
    assert status == 200
    return parsed(page)


def value(found: Samples, name: str, model: str = "marian", **labels: str) -> float | None:
    return found.get((PREFIX + name, frozenset((labels | {"model": model}).items())))


def translated(found: Samples, code: str = "OK") -> float | None:
    return value(found, "requests_total", method="Translate", code=code)
