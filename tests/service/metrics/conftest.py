from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.metrics import open_metrics
from service.metrics.page import Metrics
from tests.service.metrics.kit import HOST, Replica


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


@pytest.fixture
def port() -> Iterator[int]:
    """Kept for the test by a socket that shares it and does not listen."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((HOST, 0))
        yield kept.getsockname()[1]


@pytest.fixture
def start(folder: Path, port: int) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def starting(pid: int | None = None) -> Replica:
        started.append(Replica(folder, port, pid))
        return started[-1]

    yield starting
    for each in started:
        each.kill()


@pytest.fixture
def metrics(folder: Path, port: int) -> Iterator[Metrics]:
    metrics = open_metrics(folder, port, host=HOST)
    yield metrics
    metrics.close()
