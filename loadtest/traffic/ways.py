"""The two ways to a service. Both wait with gevent's patience: import locust before this."""

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

from loadtest.traffic.guests import Order
from loadtest.traffic.samples import LEFT
from service.client import NO_RETRIES, Client, HeadwaiterError
from service.client.call import Call, EpisodeCall, StreamCall
from service.ingress.http.encoding import dump, json_of
from service.ingress.http.events import MEDIA_TYPE
from service.ingress.http.fields import alternatives, inputs_of
from service.ingress.http.routes import ROUTES

TIMEOUT = 60.0
_CONNECTIONS = 2048
_PATHS = {method.name: route.path for route in ROUTES for method in route.methods()}
_JSON = {"content-type": "application/json"}


def make_ready() -> None:
    """Once, before the first call. gRPC holds a thread of gevent's pool for each call that is under way: with the ten
    that a pool has unless told, callers would wait for each other and not for the service."""
    with suppress(PermissionError):  # who has to wait for a core measures himself
        os.nice(-10)
    grpc_gevent.init_gevent()
    gevent.get_hub().threadpool.maxsize = _CONNECTIONS


@dataclass(slots=True)
class Outcome:
    code: str = "OK"
    message: str = ""
    first: float | None = None  # seconds to the first piece of a stream
    steps: list[float] = field(default_factory=list)  # seconds of each, of an episode


@dataclass(frozen=True, slots=True)
class Patience:
    """Of somebody who leaves: after so many seconds, or of a stream, after so many pieces."""

    seconds: float
    pieces: int


class Grpc:
    """With the client library that everybody uses, but nothing is repeated: what fails is to be seen."""

    name = "grpc"

    def __init__(self, address: str, *, key: str | None = None) -> None:
        self._client = Client(address, key=key, timeout=TIMEOUT, retries=NO_RETRIES)

    def send(self, order: Order, patience: Patience | None = None) -> Outcome:
        outcome = Outcome()
        try:
            match order.call:
                case Call() as call:
                    self._client.ask(call if patience is None else replace(call, options={"timeout": patience.seconds}))
                case StreamCall() as call:
                    self._read(call, outcome, patience)
                case EpisodeCall():
                    self._play(order, outcome)
        except HeadwaiterError as error:
            is_left = patience is not None and error.code in ("DEADLINE_EXCEEDED", "CANCELLED")
            outcome.code, outcome.message = (LEFT, "") if is_left else (error.code, error.message)
        return outcome

    def _read(self, call: StreamCall, outcome: Outcome, patience: Patience | None) -> None:
        begun = time.perf_counter()
        with self._client.stream(call) as stream:
            for count, _ in enumerate(stream):
                if outcome.first is None:
                    outcome.first = time.perf_counter() - begun
                if patience is not None and count == patience.pieces:
                    outcome.code = LEFT
                    return

    def _play(self, order: Order, outcome: Outcome) -> None:
        assert isinstance(order.call, EpisodeCall)
        assert order.play is not None
        state, reward = order.play.reset(), None
        with self._client.begin(order.call) as episode:
            for _ in range(order.play.most_steps):
                begun = time.perf_counter()
                action = episode.step(state, reward)
                outcome.steps.append(time.perf_counter() - begun)
                state, reward, over = order.play.step(action)
                if over:
                    return

    def ask(self, order: Order) -> Any:
        """The answer itself."""
        assert isinstance(order.call, Call)
        return self._client.ask(order.call)

    def close(self) -> None:
        self._client.close()


class Http:
    name = "http"

    def __init__(self, url: str, *, key: str | None = None) -> None:
        place = urlsplit(url)
        self._headers = _JSON | ({"authorization": f"Bearer {key}"} if key else {})
        self._http = HTTPClient(
            place.hostname or "localhost",
            place.port or 80,
            concurrency=_CONNECTIONS,
            network_timeout=TIMEOUT,
            block_size=1 << 16,
        )

    def send(self, order: Order, patience: Patience | None = None) -> Outcome:
        outcome, call, begun = Outcome(), order.call, time.perf_counter()
        assert not isinstance(call, EpisodeCall), "HTTP has no episodes"
        headers = dict(self._headers)
        streams = isinstance(call, StreamCall)
        if streams:
            headers["accept"] = MEDIA_TYPE
        elif patience is not None:
            headers["x-timeout-ms"] = str(max(1, round(1e3 * patience.seconds)))
        try:
            with self._posted(f"/models/{call.model}{_PATHS[call.method]}", body_of(call.request), headers) as response:
                if response.status_code != 200:
                    _note(outcome, json.loads(response.read()))
                elif streams:
                    _read_events(response, outcome, begun, patience)
                else:
                    response.read()
        except (OSError, ValueError) as error:
            outcome.code, outcome.message = "UNAVAILABLE", str(error) or type(error).__name__
        if patience is not None and outcome.code == "DEADLINE_EXCEEDED":
            outcome.code = LEFT
        return outcome

    @contextmanager
    def _posted(self, path: str, body: bytes, headers: dict[str, str]) -> Iterator[Any]:
        response = self._http.request("POST", path, body, headers)
        try:
            yield response
        finally:
            response.release()

    def close(self) -> None:
        self._http.close()


def body_of(request: Any) -> bytes:
    """The same message in JSON's words, where a choice is given by its name."""
    content, inputs = json_of(request), inputs_of(request.DESCRIPTOR)
    if inputs is not None and alternatives(inputs.message_type):
        for each in content.pop(inputs.name):
            for name, value in each.items():
                content.setdefault(name, []).append(value)
    return dump(content)


def _read_events(response: Any, outcome: Outcome, begun: float, patience: Patience | None) -> None:
    pieces, kind = 0, b""
    while line := response.readline(b"\n"):
        name, _, value = line.strip().partition(b": ")
        if name == b"event":
            kind = value
        elif name == b"data" and kind == b"error":
            return _note(outcome, json.loads(value))
        elif name == b"data" and kind == b"delta":
            pieces += 1
            if outcome.first is None:
                outcome.first = time.perf_counter() - begun
            if patience is not None and pieces > patience.pieces:
                outcome.code = LEFT
                return None
    if kind != b"done":
        outcome.code, outcome.message = "UNAVAILABLE", "the stream ended too early"
    return None


def _note(outcome: Outcome, body: Any) -> None:
    outcome.code, outcome.message = body["error"]["code"], body["error"]["message"]
