"""Serves applications on a real HTTP server in a thread, mounted as Ray mounts them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import requests
import uvicorn
from google.protobuf.message import Message
from starlette.types import ASGIApp, Receive, Scope, Send

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Endpoint
from headwaiter.engine.episodes import EpisodeClosedError, EpisodesFullError
from headwaiter.engine.jobs import ClosedError, DeadlineError, QueueFullError
from headwaiter.tasks.errors import InputError
from headwaiter.v1 import (
    captioning_pb2,
    classification_pb2,
    common_pb2,
    generation_pb2,
    models_pb2,
    policy_pb2,
    translation_pb2,
)
from tests.counts_kit import Counts

PREFIX = "/models/tiny"
REQUEST_TIMEOUT_SECONDS = 60
SHUTDOWN_TIMEOUT_SECONDS = 30
FAILURES = {
    "overloaded": QueueFullError("tiny is overloaded", retry_after=2.3),
    "overloaded briefly": QueueFullError("tiny is overloaded", retry_after=0.01),
    "full": EpisodesFullError("all slots are in use"),
    "expired": EpisodeClosedError("the episode timed out"),
    "late": DeadlineError("the deadline passed"),
    "closed": ClosedError("tiny is closing"),
    "bug": RuntimeError("a secret"),
    "long": InputError("text[0] has 9 characters; the limit is 4", field="text[0]", limit=4),
}


class FakeHandlers:
    """Handlers that record their requests. The texts of a request trigger failures, and `wait` blocks forever, unless
    `always_succeed` is set."""

    def __init__(self, *, always_succeed: bool = False) -> None:
        self._always_succeed = always_succeed
        self.requests: list[Any] = []
        self.counts = Counts()
        self.waiting = threading.Event()

    def endpoint(self, *methods: str, **options: Any) -> Endpoint:
        """An endpoint with the given methods and Describe; default: all methods."""
        handlers = {
            name: handler for name, handler in self.handlers().items() if not methods or name in (*methods, "Describe")
        }
        return Endpoint("tiny", handlers, task_description="fake", recorder=self.counts, **{"keys": None, **options})

    def handlers(self) -> dict[str, Any]:
        responses = {
            "Translate": translation_pb2.TranslateResponse(results=[_result(translation_pb2.TranslateResult)]),
            "Caption": captioning_pb2.CaptionResponse(results=[_result(captioning_pb2.CaptionResult)]),
            "Generate": generation_pb2.GenerateResponse(results=[_result(generation_pb2.GenerateResult)]),
            "Classify": classification_pb2.ClassifyResponse(results=[{"labels": [{"name": "cat", "score": 0.5}]}]),
            "Act": policy_pb2.ActResponse(results=[{"continuous": {"values": [0.1, -2]}}, {"discrete": 0}]),
            "GenerateImages": generation_pb2.GenerateImagesResponse(images=[{"data": b"\x00picture\xff"}]),
            "Describe": models_pb2.DescribeResponse(name="tiny", task="fake", version="7", limits={"text": 4}),
        }
        streams = {
            "TranslateStream": translation_pb2.TranslateStreamResponse,
            "CaptionStream": captioning_pb2.CaptionStreamResponse,
            "GenerateStream": generation_pb2.GenerateStreamResponse,
        }
        unary = {name: self._unary(response) for name, response in responses.items()}
        return unary | {name: self._stream(response_type) for name, response_type in streams.items()}

    def _unary(self, response: Message) -> Any:
        async def handler(request: Any, context: RequestContext) -> Message:
            self.requests.append(request)
            _ = context.deadline
            for text in _texts(request):
                await self._fail_or_wait(text)
            return response

        return handler

    def _stream(self, response_type: Any) -> Any:
        async def handler(request: Any, context: RequestContext) -> AsyncGenerator[Message, None]:  # noqa: ARG001
            self.requests.append(request)
            for text in _texts(request)[0].split("/"):
                await self._fail_or_wait(text)
                yield response_type(delta=text)
            yield response_type(done=common_pb2.Done(text="all", score=-0.5, finish_reason="length"))

        return handler

    async def _fail_or_wait(self, text: str) -> None:
        if self._always_succeed:
            return
        if text == "wait":
            self.waiting.set()
            await asyncio.Event().wait()
        if text in FAILURES:
            raise FAILURES[text]
        if text.startswith("input["):
            raise InputError(f"{text} is invalid", field=text)


def _result(result_type: Any) -> Any:
    return result_type(hypotheses=[{"text": "两只猫", "score": -0.25, "finish_reason": "stop"}])


def _texts(request: Any) -> list[str]:
    if isinstance(request, classification_pb2.ClassifyRequest):
        return [item.text for item in request.input if item.text]
    texts = getattr(request, "text", getattr(request, "prompt", ""))
    return [texts] if isinstance(texts, str) else list(texts)


class MountedApp:
    """An application below a path prefix, as Ray mounts it."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": self._prefix}, receive, send)


@contextmanager
def http_server(app: ASGIApp, prefix: str = PREFIX) -> Iterator[str]:
    """Serve an application; yields its base URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(MountedApp(app, prefix), log_level="critical", lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"
    finally:
        server.should_exit = True
        thread.join(SHUTDOWN_TIMEOUT_SECONDS)
        assert not thread.is_alive()


def request(method: str, url: str, **options: Any) -> requests.Response:
    return requests.request(method, url, **{"timeout": REQUEST_TIMEOUT_SECONDS, **options})


get, head, post = (partial(request, method) for method in ("GET", "HEAD", "POST"))


def error_of(response: requests.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    return body["error"]


def events_of(response: requests.Response) -> list[tuple[str, Any]]:
    """Parse a body of server-sent events into pairs of event type and data."""
    assert response.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in response.content.decode().split("\n\n")[:-1]:
        event, data = (line.partition(": ") for line in block.split("\n"))
        assert (event[0], data[0]) == ("event", "data")
        events.append((event[2], json.loads(data[2])))
    return events
