"""Fuzz requests: each is a function of the seed and its number, so that one request can be sent again alone."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.methods import METHODS
from headwaiter.v1 import policy_pb2
from loadtest.abuse.fuzz.messages import random_message
from loadtest.abuse.fuzz.mutations import mutate_bytes, mutate_json
from loadtest.traffic.json_bodies import json_body
from loadtest.traffic.request_generators import RequestGenerator

Headers = tuple[tuple[str, str], ...]

PATIENCE_SECONDS = 60.0  # timeout of requests without a random one
_CORPUS = 24  # valid requests per model
_MAX_BYTES = 16_000  # of a valid request: most are cheap
_EPISODE_STEPS = 4
_PATHS = ("/", "/models", "/healthz", "/readyz", "/docs", "/openapi.json", "/metrics", "/-/routes", "/%00", "//", "/..")
_HTTP_METHODS = ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW")
_TIMEOUTS = ("1", "5", "20", "200", "0", "-1", "nan", "1e3", "9" * 320, "")
_REQUEST_IDS = ("abc", "a" * 129, "a b", "é", "")
_CONTENT_TYPES = ("text/plain", "application/x-protobuf", "multipart/form-data", "multipart/form-data; boundary=x", ";")


@dataclass(frozen=True, slots=True)
class FuzzRequest:
    """A request as it is sent: bytes, headers, and when the client gives up."""

    number: int
    transport: str  # grpc or http
    model: str | None  # None: without the metadata key `application`
    method: str
    path: str
    http_method: str
    messages: tuple[bytes, ...]
    headers: Headers
    timeout: float
    cancel_seconds: float | None = None
    cancel_chunks: int | None = None

    @property
    def is_cancelled_by_client(self) -> bool:
        return self.cancel_seconds is not None or self.cancel_chunks is not None

    def __str__(self) -> str:
        return f"request {self.number}, {self.transport} {self.method or self.path} of {self.model}"


@dataclass(frozen=True, slots=True)
class _ValidRequest:
    method: str
    messages: tuple[Message, ...]


class FuzzRequestGenerator:
    def __init__(self, generators: Sequence[RequestGenerator], seed: int) -> None:
        self._seed = seed
        self._corpus = {generator.name: _corpus(generator) for generator in generators}
        self._state_sizes = {generator.name: generator.description.state_size or 5 for generator in generators}
        self._models = sorted(self._corpus)

    def request(self, number: int) -> FuzzRequest:
        source = random.Random(f"{self._seed} {number}")
        model = source.choice(self._models)
        valid = source.choice(self._corpus[model])
        is_grpc = METHODS[valid.method].client_streaming or source.random() < 0.5
        return self._grpc(source, number, model, valid) if is_grpc else self._http(source, number, model, valid)

    def _grpc(self, source: random.Random, number: int, model: str, valid: _ValidRequest) -> FuzzRequest:
        method = METHODS[source.choice(sorted(METHODS)) if source.random() < 0.05 else valid.method]
        seconds, chunks = _cancellation(source, streams=method.server_streaming)
        return FuzzRequest(
            number=number,
            transport="grpc",
            model=_application(source, model),
            method=method.name,
            path=method.path,
            http_method="POST",
            messages=tuple(self._grpc_messages(source, model, method, valid)),
            headers=_metadata(source),
            timeout=_timeout(source),
            cancel_seconds=seconds,
            cancel_chunks=chunks,
        )

    def _grpc_messages(self, source: random.Random, model: str, method: Any, valid: _ValidRequest) -> list[bytes]:
        match source.randrange(10):
            case 0 | 1 | 2:
                messages = [message.SerializeToString() for message in valid.messages]
            case 3 | 4 | 5:
                messages = [mutate_bytes(source, message.SerializeToString()) for message in valid.messages]
            case 6:
                messages = [source.randbytes(source.choice((0, 1, 5, 60)))]
            case _:
                count = source.randint(1, 4) if method.client_streaming else 1
                size = self._state_sizes[model]
                random_messages = [random_message(source, method.request, size) for _ in range(count)]
                messages = [message.SerializeToString() for message in random_messages]
        return messages if method.client_streaming else messages[:1]

    def _http(self, source: random.Random, number: int, model: str, valid: _ValidRequest) -> FuzzRequest:
        method = METHODS[valid.method]
        streams = method.server_streaming
        route = METHODS[method.name.removesuffix("Stream")]
        path, http_method = f"/models/{model}/{route.command}", "POST"
        if source.random() < 0.1:
            path = source.choice((*_PATHS, f"/models/{model}{source.choice(_PATHS)}", f"/models/x/{route.command}"))
            http_method = source.choice(("POST", "GET"))
        if source.random() < 0.03:
            http_method = source.choice(_HTTP_METHODS)
        seconds, chunks = _cancellation(source, streams=streams)
        return FuzzRequest(
            number=number,
            transport="http",
            model=model,
            method=method.name,
            path=path,
            http_method=http_method,
            messages=(self._http_body(source, valid.messages[0], model),),
            headers=_http_headers(source, streams=streams),
            timeout=PATIENCE_SECONDS,
            cancel_seconds=seconds,
            cancel_chunks=chunks,
        )

    def _http_body(self, source: random.Random, message: Message, model: str) -> bytes:
        match source.randrange(10):
            case 0 | 1 | 2:
                return json_body(message)
            case 3 | 4:
                return mutate_bytes(source, json_body(message))
            case 5:
                return json_body(random_message(source, type(message), self._state_sizes[model]))
            case 6:
                return source.randbytes(source.choice((0, 1, 60)))
            case _:
                content = json.loads(json_body(message))
                for _ in range(source.randint(1, 3)):
                    content = mutate_json(source, content)
                return json.dumps(content).encode(errors="surrogatepass")


def _corpus(generator: RequestGenerator) -> list[_ValidRequest]:
    """Valid and cheap requests of a model; the same for every process."""
    requests: list[_ValidRequest] = []
    while len(requests) < _CORPUS:
        call: Any = generator.request(transport="http").call  # Act instead of episodes
        if call.request.ByteSize() > _MAX_BYTES:
            continue
        if "decoding" in call.request.DESCRIPTOR.fields_by_name:
            call.request.decoding.max_new_tokens = generator.random.randint(1, 4)
        requests.append(_ValidRequest(call.method, (call.request,)))
        if call.method == "Act":
            requests.append(_ValidRequest("Episode", _episode(call.request)))
    return requests


def _episode(request: Any) -> tuple[Message, ...]:
    history = request.history[0]
    start = policy_pb2.Start(target_return=history.target_return)
    observations = [policy_pb2.Observation(state=history.steps[0].state, reward=0.0)] * _EPISODE_STEPS
    return (
        policy_pb2.EpisodeRequest(start=start),
        *(policy_pb2.EpisodeRequest(observation=observation) for observation in observations),
    )


def _application(source: random.Random, model: str) -> str | None:
    return source.choice((None, "", "unknown", "catalog", "a" * 300)) if source.random() < 0.03 else model


def _timeout(source: random.Random) -> float:
    return source.choice((0.001, 0.005, 0.02, 0.1)) if source.random() < 0.2 else PATIENCE_SECONDS


def _cancellation(source: random.Random, *, streams: bool) -> tuple[float | None, int | None]:
    """After how many seconds, or chunks of a stream, the client cancels."""
    if source.random() > 0.25:
        return None, None
    if streams and source.random() < 0.5:
        return None, source.randint(0, 3)
    return source.choice((0.0, source.uniform(0, 0.005), source.uniform(0, 0.05))), None


def _metadata(source: random.Random) -> Headers:
    headers = []
    if source.random() < 0.1:
        headers.append(("x-timeout-ms", source.choice(_TIMEOUTS)))
    if source.random() < 0.1:
        headers.append(("x-request-id", source.choice(_REQUEST_IDS[:3])))
    if source.random() < 0.05:
        headers.append((f"x-{source.randrange(10**6)}", "a" * source.choice((1, 100, 2000))))
    return tuple(headers)


def _http_headers(source: random.Random, *, streams: bool) -> Headers:
    headers = [*_metadata(source)]
    if source.random() < 0.9:
        headers.append(("content-type", "application/json"))
    else:
        headers.append(("content-type", source.choice(_CONTENT_TYPES)))
    if streams or source.random() < 0.05:
        headers.append(("accept", "text/event-stream"))
    if source.random() < 0.03:
        headers.append(("x-request-id", source.choice(_REQUEST_IDS)))
    return tuple(headers)
