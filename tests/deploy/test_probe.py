from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadtest.served import Service
from service.probe import objections

NAMES = ["catalog", "one", "two"]


class Proxy(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Answers for the applications that have a replica, as a node's proxy does."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.asked: list[str] = []

    def Check(self, _: Any, context: grpc.ServicerContext) -> health_pb2.HealthCheckResponse:  # noqa: N802
        (application,) = (value for key, value in context.invocation_metadata() if key == "application")
        self.asked.append(application)
        if application not in self.ready:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no replica")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
def against(proxy: Proxy, tmp_path: Path) -> Iterator[Callable[[], list[str]]]:
    """What speaks against calls to a node with this proxy."""
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(proxy, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield lambda: objections(f"127.0.0.1:{port}", NAMES, tmp_path / "all-answered")
    server.stop(None)


def test_at_first_every_application_must_answer(proxy: Proxy, against: Callable[[], list[str]]) -> None:
    proxy.ready = {"catalog", "two"}
    assert against() == ["one: UNAVAILABLE"]
    assert against() == ["one: UNAVAILABLE"]
    proxy.ready = set(NAMES)
    assert against() == []


@pytest.mark.parametrize("left", NAMES)
def test_then_one_that_answers_is_enough(proxy: Proxy, against: Callable[[], list[str]], left: str) -> None:
    """So the loss of a node, and with it of the only catalog, takes no other node out."""
    proxy.ready = set(NAMES)
    assert against() == []
    proxy.ready, proxy.asked = {left}, []
    assert against() == []
    assert proxy.asked[-1] == left  # nobody else is asked: that would wake those who sleep


def test_a_node_whose_proxy_answers_for_nobody_is_not_called(proxy: Proxy, against: Callable[[], list[str]]) -> None:
    proxy.ready = set(NAMES)
    assert against() == []
    proxy.ready = set()
    assert against() == [f"{name}: UNAVAILABLE" for name in NAMES]


@pytest.mark.slow
def test_the_command_that_a_kubelet_runs(service: Service, tmp_path: Path) -> None:
    def run(*names: str) -> tuple[int, str]:
        order = [sys.executable, "-m", "service.probe", service.grpc, *names]
        done = subprocess.run(order, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
        return done.returncode, done.stderr

    assert run("catalog", "nobody") == (1, "nobody: NOT_FOUND\n")
    assert run("catalog", "writer") == (0, "")
    assert run("nobody", "writer") == (0, "")
    assert run("nobody") == (1, "nobody: NOT_FOUND\n")
