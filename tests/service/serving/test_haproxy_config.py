"""Ray's HAProxy with our changes to Ray's own configuration: what clients receive while a model has no replica."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ray.serve._private.common import RequestProtocol
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions, gRPCOptions

from headwaiter.serving import ray_compat
from loadtest.service_process import free_ports

_TIMEOUT_SECONDS = 30
_AT_ONCE_SECONDS = 0.9  # less than the second that HAProxy waits before it connects to the same server again
_SERVICER = "headwaiter.v1.models_pb2_grpc.add_ModelsServicer_to_server"


class _Replica(BaseHTTPRequestHandler):
    """An HTTP server that answers, answers late, answers 404 as Ray's proxy does, or closes the connection."""

    protocol_version = "HTTP/1.1"
    behaviour = "answer"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.behaviour == "die":
            time.sleep(0.1)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        if self.behaviour == "hang":
            time.sleep(5)
        self._respond(404 if self.behaviour == "unknown" else 200)

    def do_GET(self) -> None:
        self._respond(200)

    def _respond(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def _server(behaviour: str) -> Iterator[int]:
    """The port of a server; that of a killed replica refuses connections."""
    handler = type("Replica", (_Replica,), {"behaviour": behaviour})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    port = server.server_address[1]
    if behaviour == "killed":
        server.server_close()
        yield port
        return
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield port
    server.shutdown()
    server.server_close()


@dataclass
class _Response:
    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


@dataclass
class _Proxy:
    http_port: int
    grpc_port: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=_TIMEOUT_SECONDS)

    def send(
        self, method: str, path: str, connection: http.client.HTTPConnection | None = None, **headers: str
    ) -> _Response:
        connection, started_at = connection or self.connect(), time.monotonic()
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        response = connection.getresponse()
        return _Response(response.status, dict(response.getheaders()), response.read(), time.monotonic() - started_at)

    def check(self, application: str) -> grpc.RpcError:
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel, pytest.raises(grpc.RpcError) as caught:
            health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), metadata=[("application", application)], timeout=_TIMEOUT_SECONDS
            )
        return caught.value


@contextmanager
def _proxy(folder: Path, *replicas: str, fallback: str = "hang", applications: tuple[str, ...] = ("one",)) -> Any:
    """HAProxy with replicas and a fallback of the given behaviour, started by the program that replaces it."""
    ports = free_ports("http", "grpc", "stats", "metrics")
    with ExitStack() as stack:
        backends: dict[str, BackendConfig] = {}
        fallback_server = ServerConfig("SERVE_PROXY_ACTOR-7", "127.0.0.1", stack.enter_context(_server(fallback)))
        servers = [
            ServerConfig(f"replica-{index}", "127.0.0.1", stack.enter_context(_server(behaviour)))
            for index, behaviour in enumerate(replicas)
        ]
        for name in applications:
            for protocol in (RequestProtocol.HTTP, RequestProtocol.GRPC):
                backend = f"{protocol.value}-{name}"
                backends[backend] = BackendConfig(
                    backend, f"/models/{name}", servers=servers, fallback_server=fallback_server, app_name=name
                )
                backends[backend].protocol = protocol
        config = HAProxyConfig(
            socket_path=str(folder / "admin.sock"),
            server_state_base=str(folder),
            server_state_file=str(folder / "server-state"),
            metrics_socket_path=str(folder / "metrics.sock"),
            metrics_enabled=False,
            stats_port=ports["stats"],
            metrics_port=ports["metrics"],
            http_options=HTTPOptions(host="127.0.0.1", port=ports["http"]),
            grpc_options=gRPCOptions(port=ports["grpc"], grpc_servicer_functions=[_SERVICER]),
        )
        api = HAProxyApi(config, backends, str(folder / "haproxy.cfg"))
        api._generate_config_file_internal()
        script = ray_compat.haproxy_script("catalog")
        assert script is not None
        command = ["/bin/sh", "-c", script, "haproxy", "-db", "-f", str(folder / "haproxy.cfg")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_listening(ports["http"])
            yield _Proxy(ports["http"], ports["grpc"])
        finally:
            process.terminate()
            process.wait(_TIMEOUT_SECONDS)


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "HAProxy does not listen"
            time.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("replicas", [[], ["killed"]])
@pytest.mark.parametrize("page", ["readyz", "healthz"])
def test_probe_without_replica_is_unavailable_at_once(tmp_path: Path, replicas: list[str], page: str) -> None:
    with _proxy(tmp_path, *replicas) as proxy:
        response = proxy.send("GET", f"/models/one/{page}")
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert response.error["code"] == "UNAVAILABLE"
        assert response.seconds < _AT_ONCE_SECONDS
        error = proxy.check("one")
        assert (error.code(), "no replica" in error.details()) == (grpc.StatusCode.UNAVAILABLE, True)


def test_probe_of_running_replica_is_answered_by_it(tmp_path: Path) -> None:
    with _proxy(tmp_path, "answer") as proxy:
        assert proxy.send("GET", "/models/one/readyz").status == 200


def test_request_without_replica_fails_at_its_deadline(tmp_path: Path) -> None:
    with _proxy(tmp_path) as proxy:
        response = proxy.send("POST", "/models/one/classify", **{"x-timeout-ms": "300"})
        assert (response.status, response.error["code"]) == (504, "DEADLINE_EXCEEDED")
        assert 0.3 <= response.seconds < _AT_ONCE_SECONDS


@pytest.mark.parametrize("timeout", ["", "-1", "9" * 320, "1e3"])
def test_request_with_invalid_timeout_is_left_to_the_replica(tmp_path: Path, timeout: str) -> None:
    with _proxy(tmp_path, "answer") as proxy:
        assert proxy.send("POST", "/models/one/classify", **{"x-timeout-ms": timeout}).status == 200


@pytest.mark.parametrize("keeps_alive", [False, True])
def test_request_of_killed_replica_is_repeated_or_unavailable_in_json(tmp_path: Path, keeps_alive: bool) -> None:
    """HAProxy repeats a request if it received it at once; a body that arrives after the headers is not kept."""
    with _proxy(tmp_path, "die", "answer") as proxy:
        connection = proxy.connect()
        for _ in range(6):  # to both replicas
            response = proxy.send("POST", "/models/one/classify", connection if keeps_alive else None)
            assert response.status in (200, 503)
            if response.status == 503:
                assert (response.error["code"], response.headers["retry-after"]) == ("UNAVAILABLE", "1")
            assert proxy.send("GET", "/models/one", connection if keeps_alive else None).status == 200


@pytest.mark.parametrize("keeps_alive", [False, True])
def test_request_that_ends_every_replica_is_unavailable_in_json(tmp_path: Path, keeps_alive: bool) -> None:
    with _proxy(tmp_path, "die", "die", fallback="die") as proxy:
        connection = proxy.connect()
        if keeps_alive:
            proxy.send("GET", "/models/one", connection)
        response = proxy.send("POST", "/models/one/classify", connection)
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert response.error["code"] == "UNAVAILABLE"


def test_model_that_is_being_removed_is_unavailable(tmp_path: Path) -> None:
    with _proxy(tmp_path, fallback="unknown") as proxy:
        response = proxy.send("POST", "/models/one/classify")
        assert (response.status, response.error["code"]) == (503, "UNAVAILABLE")


def test_service_without_applications_is_unavailable(tmp_path: Path) -> None:
    with _proxy(tmp_path, applications=()) as proxy:
        response = proxy.send("POST", "/models/one/classify")
        assert (response.status, response.error["code"], response.headers["retry-after"]) == (503, "UNAVAILABLE", "1")
        error = proxy.check("one")
        assert (error.code(), "stopping" in error.details()) == (grpc.StatusCode.UNAVAILABLE, True)


@pytest.mark.parametrize("applications", [("one",), ("one", "two"), ("one", "catalog")])
def test_grpc_call_while_the_catalog_has_no_replica_is_unavailable(
    tmp_path: Path, applications: tuple[str, ...]
) -> None:
    """Instead of Ray's proxy, which knows no application while the service stops."""
    with _proxy(tmp_path, applications=applications) as proxy:
        channel = grpc.insecure_channel(f"127.0.0.1:{proxy.grpc_port}")
        send = channel.unary_unary("/headwaiter.v1.Models/Describe")
        with channel, pytest.raises(grpc.RpcError) as caught:
            send(b"", metadata=[("application", "one")], timeout=_TIMEOUT_SECONDS)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
