"""Applications on a real HTTP server in a thread, mounted as Ray mounts them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import requests
import uvicorn
from google.protobuf.message import Message
from starlette.types import ASGIApp, Receive, Scope, Send

from headwaiter.v1 import (
    captioning_pb2,
    classification_pb2,
    common_pb2,
    generation_pb2,
    models_pb2,
    policy_pb2,
    translation_pb2,
)
from service.engine.episodes import EpisodeGoneError, EpisodesFullError
from service.engine.jobs import ClosedError, DeadlineError, QueueFullError
from service.ingress.calls import Call
from service.ingress.endpoint import Endpoint
from service.tasks.errors import InputError
from tests.counts_kit import Counts

PREFIX = "/models/tiny"
FAILURES = {
    "busy": QueueFullError("tiny is busy", retry_after=2.3),
    "busy now": QueueFullError("tiny is busy", retry_after=0.01),
    "full": EpisodesFullError("all rows are taken"),
    "gone": EpisodeGoneError("the episode timed out"),
    "late": DeadlineError("the deadline passed"),
    "closed": ClosedError("tiny is closing"),
    "bug": RuntimeError("a secret"),
    "long": InputError("text[0] has 9 characters; the limit is 4", field="text[0]", limit=4),
}


class Kitchen:
    """Methods that remember what they were asked; unless calm, they fail when a text says so, and `wait` never ends."""

    def __init__(self, *, calm: bool = False) -> None:
        self._calm = calm
        self.asked: list[Any] = []
        self.counts = Counts()
        self.waiting = threading.Event()

    def endpoint(self, *methods: str, **options: Any) -> Endpoint:
        chosen = {name: verb for name, verb in self.verbs().items() if not methods or name in (*methods, "Describe")}
        return Endpoint("tiny", chosen, does="cooking", recorder=self.counts, **{"keys": None, **options})

    def verbs(self) -> dict[str, Any]:
        answers = {
            "Translate": translation_pb2.TranslateResponse(results=[_words(translation_pb2.TranslateResult)]),
            "Caption": captioning_pb2.CaptionResponse(results=[_words(captioning_pb2.CaptionResult)]),
            "Generate": generation_pb2.GenerateResponse(results=[_words(generation_pb2.GenerateResult)]),
            "Classify": classification_pb2.ClassifyResponse(results=[{"labels": [{"name": "soup", "score": 0.5}]}]),
            "Act": policy_pb2.ActResponse(results=[{"continuous": {"values": [0.1, -2]}}, {"discrete": 0}]),
            "GenerateImages": generation_pb2.GenerateImagesResponse(images=[{"data": b"\x00picture\xff"}]),
            "Describe": models_pb2.DescribeResponse(name="tiny", task="cooking", version="7", limits={"text": 4}),
        }
        streams = {
            "TranslateStream": translation_pb2.TranslateStreamResponse,
            "CaptionStream": captioning_pb2.CaptionStreamResponse,
            "GenerateStream": generation_pb2.GenerateStreamResponse,
        }
        unary = {name: self._unary(answer) for name, answer in answers.items()}
        return unary | {name: self._stream(response) for name, response in streams.items()}

    def _unary(self, answer: Message) -> Any:
        async def verb(request: Any, call: Call) -> Message:
            self.asked.append(request)
            _ = call.deadline
            for text in _texts(request):
                await self._do(text)
            return answer

        return verb

    def _stream(self, response: Any) -> Any:
        async def verb(request: Any, call: Call) -> AsyncGenerator[Message, None]:  # noqa: ARG001
            self.asked.append(request)
            for word in _texts(request)[0].split("/"):
                await self._do(word)
                yield response(delta=word)
            yield response(done=common_pb2.Done(text="all", score=-0.5))

        return verb

    async def _do(self, text: str) -> None:
        if self._calm:
            return
        if text == "wait":
            self.waiting.set()
            await asyncio.Event().wait()
        if text in FAILURES:
            raise FAILURES[text]
        if text.startswith("input["):
            raise InputError(f"{text} is burnt", field=text)


def _words(result: Any) -> Any:
    return result(hypotheses=[{"text": "两道菜", "score": -0.25}])


def _texts(request: Any) -> list[str]:
    if isinstance(request, classification_pb2.ClassifyRequest):
        return [each.text for each in request.input if each.text]
    given = getattr(request, "text", getattr(request, "prompt", ""))
    return [given] if isinstance(given, str) else list(given)


class Mounted:
    """What Ray does with a model's path."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, "root_path": self._prefix}, receive, send)


@contextmanager
def listening(app: ASGIApp, prefix: str = PREFIX) -> Iterator[str]:
    """The address that the application's own paths are added to."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Mounted(app, prefix), log_level="critical", lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"
    finally:
        server.should_exit = True
        thread.join()


def error_of(response: requests.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert body.keys() == {"error"}
    return body["error"]


def events_of(response: requests.Response) -> list[tuple[str, Any]]:
    """Server-sent events, as a browser reads them."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in response.content.decode().split("\n\n")[:-1]:
        kind, data = (line.partition(": ") for line in block.split("\n"))
        assert (kind[0], data[0]) == ("event", "data")
        found.append((kind[2], json.loads(data[2])))
    return found
