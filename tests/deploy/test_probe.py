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

from headwaiter.serving.probe import readiness_failures
from loadtest.service_process import ServiceProcess

NAMES = ["catalog", "one", "two"]


class Proxy(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Health service of a node's proxy: serving for the applications that have a replica."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.checked: list[str] = []

    def Check(self, _: Any, context: grpc.ServicerContext) -> health_pb2.HealthCheckResponse:  # noqa: N802
        (application,) = (value for key, value in context.invocation_metadata() if key == "application")
        self.checked.append(application)
        if application not in self.ready:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no replica")
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
def check_node(proxy: Proxy, tmp_path: Path) -> Iterator[Callable[[], list[str]]]:
    """Readiness failures of a node with this proxy."""
    server = grpc.server(ThreadPoolExecutor(1))
    health_pb2_grpc.add_HealthServicer_to_server(proxy, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield lambda: readiness_failures(f"127.0.0.1:{port}", NAMES, tmp_path / "all-ready")
    server.stop(None)


def test_readiness_at_start_requires_every_application(proxy: Proxy, check_node: Callable[[], list[str]]) -> None:
    proxy.ready = {"catalog", "two"}
    assert check_node() == ["one: UNAVAILABLE"]
    assert check_node() == ["one: UNAVAILABLE"]
    proxy.ready = set(NAMES)
    assert check_node() == []


@pytest.mark.parametrize("remaining", NAMES)
def test_readiness_after_start_requires_one_application(
    proxy: Proxy, check_node: Callable[[], list[str]], remaining: str
) -> None:
    """The loss of one node, for example of the one with the catalog, must not make others unready."""
    proxy.ready = set(NAMES)
    assert check_node() == []
    proxy.ready, proxy.checked = {remaining}, []
    assert check_node() == []
    assert proxy.checked[-1] == remaining  # further checks would start models that are scaled to zero


def test_readiness_without_any_application_fails(proxy: Proxy, check_node: Callable[[], list[str]]) -> None:
    proxy.ready = set(NAMES)
    assert check_node() == []
    proxy.ready = set()
    assert check_node() == [f"{name}: UNAVAILABLE" for name in NAMES]


@pytest.mark.slow
def test_probe_command_exit_code(service: ServiceProcess, tmp_path: Path) -> None:
    def run(*names: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "headwaiter.serving.probe", service.grpc, *names]
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        return result.returncode, result.stderr

    assert run("catalog", "unknown") == (1, "unknown: NOT_FOUND\n")
    assert run("catalog", "writer") == (0, "")
    assert run("unknown", "writer") == (0, "")
    assert run("unknown") == (1, "unknown: NOT_FOUND\n")
