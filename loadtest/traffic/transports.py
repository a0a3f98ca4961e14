"""gRPC and HTTP transports on gevent; import locust first, because it monkey-patches blocking calls."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import gevent
from geventhttpclient import HTTPClient
from grpc.experimental import gevent as grpc_gevent

from headwaiter.api.http.events import MEDIA_TYPE
from headwaiter.api.http.routes import ROUTES
from headwaiter.client import NO_RETRIES, Client, HeadwaiterError
from headwaiter.client.call import Call, EpisodeCall, StreamCall
from loadtest.traffic.json_bodies import json_body
from loadtest.traffic.request_generators import LoadRequest
from loadtest.traffic.samples import CLIENT_CANCELLED

TIMEOUT = 60.0
_CONNECTIONS = 2048
_PATHS = {method.name: route.path for route in ROUTES for method in route.methods()}
_JSON = {"content-type": "application/json"}


def configure_gevent() -> None:
    """Set up gRPC on gevent; call once, before the first request.

    gRPC holds a thread of gevent's pool for each request in flight. With the default of ten threads, requests would
    wait for each other instead of for the service.
    """
    with suppress(PermissionError):  # a load generator that waits for a core would measure itself
        os.nice(-10)
    grpc_gevent.init_gevent()
    gevent.get_hub().threadpool.maxsize = _CONNECTIONS


@dataclass(slots=True)
class CallResult:
    code: str = "OK"
    message: str = ""
    first_chunk_seconds: float | None = None
    steps: list[float] = field(default_factory=list)  # seconds of each step of an episode


@dataclass(frozen=True, slots=True)
class CancelAfter:
    """When the client cancels: after `seconds`, or after `chunks` of a stream."""

    seconds: float
    chunks: int


class GrpcTransport:
    """Sends requests with the client library; retries are disabled so that every failure is counted."""

    name = "grpc"

    def __init__(self, address: str, *, key: str | None = None) -> None:
        self._client = Client(address, key=key, timeout=TIMEOUT, retries=NO_RETRIES)

    def send(self, request: LoadRequest, cancel_after: CancelAfter | None = None) -> CallResult:
        result = CallResult()
        try:
            match request.call:
                case Call() as call:
                    self._client.execute(
                        call if cancel_after is None else replace(call, options={"timeout": cancel_after.seconds})
                    )
                case StreamCall() as call:
                    self._read(call, result, cancel_after)
                case EpisodeCall():
                    self._run_episode(request, result)
        except HeadwaiterError as error:
            is_cancelled = cancel_after is not None and error.code in ("DEADLINE_EXCEEDED", "CANCELLED")
            result.code, result.message = (CLIENT_CANCELLED, "") if is_cancelled else (error.code, error.message)
        return result

    def _read(self, call: StreamCall, result: CallResult, cancel_after: CancelAfter | None) -> None:
        started = time.perf_counter()
        with self._client.stream(call) as stream:
            for count, _ in enumerate(stream):
                if result.first_chunk_seconds is None:
                    result.first_chunk_seconds = time.perf_counter() - started
                if cancel_after is not None and count == cancel_after.chunks:
                    result.code = CLIENT_CANCELLED
                    return

    def _run_episode(self, request: LoadRequest, result: CallResult) -> None:
        assert isinstance(request.call, EpisodeCall)
        assert request.rollout is not None
        state, reward = request.rollout.reset(), None
        with self._client.begin(request.call) as episode:
            for _ in range(request.rollout.max_steps):
                started = time.perf_counter()
                action = episode.step(state, reward)
                result.steps.append(time.perf_counter() - started)
                state, reward, over = request.rollout.step(action)
                if over:
                    return

    def execute(self, request: LoadRequest) -> Any:
        """Send a request and return its answer."""
        assert isinstance(request.call, Call)
        return self._client.execute(request.call)

    def close(self) -> None:
        self._client.close()


class HttpTransport:
    name = "http"

    def __init__(self, url: str, *, key: str | None = None) -> None:
        parts = urlsplit(url)
        self._headers = _JSON | ({"authorization": f"Bearer {key}"} if key else {})
        self._http = HTTPClient(
            parts.hostname or "localhost",
            parts.port or 80,
            concurrency=_CONNECTIONS,
            network_timeout=TIMEOUT,
            block_size=1 << 16,
        )

    def send(self, request: LoadRequest, cancel_after: CancelAfter | None = None) -> CallResult:
        result, call, started = CallResult(), request.call, time.perf_counter()
        assert not isinstance(call, EpisodeCall), "episodes are not available over HTTP"
        headers = dict(self._headers)
        streams = isinstance(call, StreamCall)
        if streams:
            headers["accept"] = MEDIA_TYPE
        elif cancel_after is not None:
            headers["x-timeout-ms"] = str(max(1, round(1e3 * cancel_after.seconds)))
        try:
            with self._post(f"/models/{call.model}{_PATHS[call.method]}", json_body(call.request), headers) as response:
                if response.status_code != 200:
                    _set_error(result, json.loads(response.read()))
                elif streams:
                    _read_events(response, result, started, cancel_after)
                else:
                    response.read()
        except (OSError, ValueError) as error:
            result.code, result.message = "UNAVAILABLE", str(error) or type(error).__name__
        if cancel_after is not None and result.code == "DEADLINE_EXCEEDED":
            result.code = CLIENT_CANCELLED
        return result

    @contextmanager
    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> Iterator[Any]:
        response = self._http.request("POST", path, body, headers)
        try:
            yield response
        finally:
            response.release()

    def close(self) -> None:
        self._http.close()


def _read_events(response: Any, result: CallResult, started: float, cancel_after: CancelAfter | None) -> None:
    chunks, kind = 0, b""
    while line := response.readline(b"\n"):
        name, _, value = line.strip().partition(b": ")
        if name == b"event":
            kind = value
        elif name == b"data" and kind == b"error":
            return _set_error(result, json.loads(value))
        elif name == b"data" and kind == b"delta":
            chunks += 1
            if result.first_chunk_seconds is None:
                result.first_chunk_seconds = time.perf_counter() - started
            if cancel_after is not None and chunks > cancel_after.chunks:
                result.code = CLIENT_CANCELLED
                return None
    if kind != b"done":
        result.code, result.message = "UNAVAILABLE", "the stream ended without a final event"
    return None


def _set_error(result: CallResult, body: Any) -> None:
    result.code, result.message = body["error"]["code"], body["error"]["message"]
