"""`GET /metrics`: the metrics of a node, served by each of its replicas on the same port."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector

from headwaiter.serving.metrics.folder import exclusive_lock, merge_dead_writers, value_files
from headwaiter.serving.metrics.model import ModelMetrics
from headwaiter.serving.metrics.writer import Writer

PATH = "/metrics"
_CLIENT_TIMEOUT_SECONDS = 10
_LOG = logging.getLogger(__name__)


class MetricsError(Exception):
    """The metrics endpoint cannot be opened."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def collect_metrics(folder: Path) -> MetricsSnapshot:
    """Merge the values of all writers of a node, running or ended."""
    with exclusive_lock(folder):
        merge_dead_writers(folder)
        merged = MultiProcessCollector.merge(value_files(folder), accumulate=True)
    return MetricsSnapshot(sorted(merged, key=lambda metric: metric.name))


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "headwaiter", ""
    error_content_type, error_message_format = "text/plain; charset=utf-8", "%(explain)s\n"
    timeout = _CLIENT_TIMEOUT_SECONDS

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self._folder = folder
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if urlsplit(self.path).path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"Path not found; metrics are at {PATH}.")
            return
        try:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            body = encode(collect_metrics(self._folder))
        except Exception:
            _LOG.exception("metrics could not be collected")
            explain = "Metrics could not be collected; see the replica logs on this node."
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=explain)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (named so in the base class)
        _LOG.debug(format, *args)


class _Server(ThreadingMixIn, TCPServer):
    """Not an HTTPServer, which does a reverse DNS lookup before it listens."""

    allow_reuse_address = allow_reuse_port = daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        level = logging.DEBUG if isinstance(sys.exception(), ConnectionError | TimeoutError) else logging.ERROR
        _LOG.log(level, "a metrics request failed", exc_info=True)


class MetricsExporter:
    """Metrics directory of a node and this process's HTTP server for it."""

    def __init__(self, folder: Path, server: _Server) -> None:
        self.folder, self._server = folder, server
        self.port: int = server.server_address[1]
        self._thread = threading.Thread(target=server.serve_forever, name="metrics-exporter", daemon=True)
        self._thread.start()

    def for_model(self, model: str) -> ModelMetrics:
        return ModelMetrics(model, Writer(self.folder))

    def close(self) -> None:
        """Stop serving; other replicas of the node continue. Recorded values are kept."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def open_metrics(folder: str | Path, port: int, *, host: str = "0.0.0.0") -> MetricsExporter:
    """Serve the metrics in `folder`. Several processes may share the port. Raises MetricsError."""
    directory = Path(folder)
    directory.mkdir(parents=True, exist_ok=True)

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), partial(_Handler, directory))
    except OSError as error:
        raise MetricsError(
            f"metrics cannot be served on {host}:{port} ({error.strerror}); choose another metrics.port"
        ) from error
    return MetricsExporter(directory, server)
