"""`GET /metrics`: the page of a node, served by each of its replicas on the same port."""

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

from service.metrics.folder import exclusive, files, settle
from service.metrics.model import ModelMetrics
from service.metrics.writer import Writer

PATH = "/metrics"
_SILENT_SECONDS = 10
_LOG = logging.getLogger(__name__)


class MetricsError(Exception):
    """The page cannot be served; the message says why and what would be right."""


@dataclass(frozen=True, slots=True)
class Page:
    metrics: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        return self.metrics


def read_page(folder: Path) -> Page:
    with exclusive(folder):
        settle(folder)
        merged = MultiProcessCollector.merge(files(folder), accumulate=True)
    return Page(sorted(merged, key=lambda metric: metric.name))


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "headwaiter", ""
    error_content_type, error_message_format = "text/plain; charset=utf-8", "%(explain)s\n"
    timeout = _SILENT_SECONDS

    def __init__(self, folder: Path, *arguments: Any) -> None:
        self._folder = folder
        super().__init__(*arguments)

    def do_GET(self) -> None:
        if urlsplit(self.path).path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, explain=f"There is nothing here; the metrics are at {PATH}.")
            return
        try:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            body = encode(read_page(self._folder))
        except Exception:
            _LOG.exception("the metrics could not be read")
            explain = "The metrics could not be read; the log of a replica on this node says why."
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, explain=explain)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name in the base class)
        _LOG.debug(format, *args)


class _Server(ThreadingMixIn, TCPServer):
    """Not an HTTPServer: that one asks the name service for its own name before it listens."""

    allow_reuse_address = allow_reuse_port = daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        level = logging.DEBUG if isinstance(sys.exception(), ConnectionError | TimeoutError) else logging.ERROR
        _LOG.log(level, "a reader of the metrics was lost", exc_info=True)


class Metrics:
    """A node's folder, and this process' part in serving its page."""

    def __init__(self, folder: Path, server: _Server) -> None:
        self.folder, self._server = folder, server
        self.port: int = server.server_address[1]
        self._thread = threading.Thread(target=server.serve_forever, name="metrics page", daemon=True)
        self._thread.start()

    def of(self, model: str) -> ModelMetrics:
        return ModelMetrics(model, Writer(self.folder))

    def close(self) -> None:
        """Leaves the page to the others of the node. What was counted stays."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def open_metrics(folder: str | Path, port: int, *, host: str = "0.0.0.0") -> Metrics:
    """Serves the page of all who count in `folder`, beside whoever serves it on this port already."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)

    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    try:
        server = Server((host, port), partial(_Handler, root))
    except OSError as error:
        raise MetricsError(
            f"metrics cannot be served on {host}:{port} ({error.strerror}); choose another metrics.port"
        ) from error
    return Metrics(root, server)
