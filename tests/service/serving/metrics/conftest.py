from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwaiter.serving.metrics import open_metrics
from headwaiter.serving.metrics.exporter import MetricsExporter
from tests.service.serving.metrics.replica_kit import HOST, Replica


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


@pytest.fixture
def port() -> Iterator[int]:
    """A free port, reserved by a socket that shares it and does not listen."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reservation.bind((HOST, 0))
        yield reservation.getsockname()[1]


@pytest.fixture
def start(folder: Path, port: int) -> Iterator[Callable[..., Replica]]:
    replicas: list[Replica] = []

    def start_replica(pid: int | None = None) -> Replica:
        replicas.append(Replica(folder, port, pid))
        return replicas[-1]

    yield start_replica
    for replica in replicas:
        replica.kill()


@pytest.fixture
def exporter(folder: Path, port: int) -> Iterator[MetricsExporter]:
    exporter = open_metrics(folder, port, host=HOST)
    yield exporter
    exporter.close()
