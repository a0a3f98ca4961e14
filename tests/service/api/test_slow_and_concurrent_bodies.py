"""Bodies that trickle end with 408, and the bytes of concurrent requests are bounded."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from headwaiter.api.context import RequestContext
from headwaiter.api.errors import FailedError
from headwaiter.api.http import body
from headwaiter.api.http.model import build_app
from headwaiter.engine.jobs import QueueFullError
from headwaiter.v1 import translation_pb2
from tests.http_kit import PREFIX, FakeHandlers, error_of, http_server, post

_MB = 1 << 20


async def test_trickled_body_is_answered_with_408_and_the_connection_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.5)
    handlers = FakeHandlers()
    app = await build_app(handlers.endpoint(), ready=lambda: True)
    with http_server(app) as url, socket.create_connection(("127.0.0.1", _port(url)), timeout=20) as connection:
        head = f"POST {PREFIX}/translate HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"
        connection.sendall(head.encode() + b'{"text":')
        response = b""
        while chunk := connection.recv(1 << 16):  # until the server closes the connection
            response += chunk
    assert response.startswith(b"HTTP/1.1 408 ")
    error = json.loads(response.partition(b"\r\n\r\n")[2])["error"]
    assert error["code"] == "DEADLINE_EXCEEDED"
    assert "8 bytes of the body" in error["message"]
    assert handlers.counts.codes == {("Translate", "DEADLINE_EXCEEDED"): 1}


async def test_slow_body_at_the_minimum_rate_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(body, "MIN_BYTES_PER_SECOND", 10)
    app = await build_app(FakeHandlers().endpoint(), ready=lambda: True)

    def chunks() -> Any:
        for chunk in (b'{"text": ', b'"cat', b'", "decoding": {}}'):
            yield chunk
            time.sleep(0.25)

    with http_server(app) as url:
        response = await asyncio.to_thread(
            post, f"{url}/translate", data=chunks(), headers={"content-type": "application/json"}
        )
    assert response.status_code == 200


async def test_bytes_of_concurrent_http_bodies_are_bounded() -> None:
    handlers = FakeHandlers()
    endpoint = handlers.endpoint(message_mb=1, concurrent_mb=1)
    app = await build_app(endpoint, ready=lambda: True, message_mb=1)
    with http_server(app) as url, socket.create_connection(("127.0.0.1", _port(url)), timeout=20) as connection:
        head = f"POST {PREFIX}/translate HTTP/1.1\r\nhost: a\r\ncontent-length: {_MB}\r\n\r\n"
        connection.sendall(head.encode() + b"a" * (_MB - 100))  # all but the end, and nothing more
        async with asyncio.timeout(20):
            while endpoint.budget.used_bytes < _MB - 100:
                await asyncio.sleep(0.01)
        rejected = await asyncio.to_thread(post, f"{url}/translate", json={"text": "a" * 1000})
        assert (rejected.status_code, error_of(rejected)["code"]) == (429, "RESOURCE_EXHAUSTED")
        assert int(rejected.headers["retry-after"]) >= 1
        connection.close()
        async with asyncio.timeout(20):
            while endpoint.budget.used_bytes:
                await asyncio.sleep(0.01)
        accepted = await asyncio.to_thread(post, f"{url}/translate", json={"text": "a" * 1000})
    assert accepted.status_code == 200


async def test_bytes_of_concurrent_messages_are_bounded() -> None:
    endpoint = FakeHandlers().endpoint(message_mb=1, concurrent_mb=1)
    waiting = translation_pb2.TranslateRequest(text=["wait", "a" * (_MB - 100)])
    first = asyncio.create_task(endpoint.answer(waiting, RequestContext.begin("Translate", {})))
    await asyncio.sleep(0)
    small = translation_pb2.TranslateRequest(text=["a" * 1000])
    with pytest.raises(FailedError, match="retry later") as caught:
        await endpoint.answer(small, RequestContext.begin("Translate", {}))
    assert isinstance(caught.value.__cause__, QueueFullError)
    assert caught.value.failure.retry_after
    first.cancel()
    await asyncio.wait([first])
    assert endpoint.budget.used_bytes == 0
    await endpoint.answer(small, RequestContext.begin("Translate", {}))
    assert endpoint.budget.used_bytes == 0


async def test_bytes_of_an_episode_are_those_of_its_last_message() -> None:
    handlers = FakeHandlers()
    endpoint = handlers.endpoint()
    used: list[int] = []

    async def consume(requests: Any, _: Any) -> AsyncIterator[Any]:
        async for request in requests:
            used.append(endpoint.budget.used_bytes)
            yield request

    endpoint.handlers = {"Episode": consume}  # type: ignore[dict-item]

    async def messages() -> AsyncIterator[Any]:
        for size in (5000, 100):
            yield translation_pb2.TranslateRequest(text=["a" * size])

    async for _ in endpoint.stream(messages(), RequestContext.begin("Episode", {})):
        pass
    assert used[0] > 5000 > 200 > used[1] > 0
    assert endpoint.budget.used_bytes == 0


async def test_cancelled_requests_release_their_bytes() -> None:
    endpoint, rng = FakeHandlers().endpoint(), random.Random(1)
    for _ in range(100):
        request = translation_pb2.TranslateRequest(text=[rng.choice(["cat", "wait", "bug"])])
        task = asyncio.create_task(endpoint.answer(request, RequestContext.begin("Translate", {})))
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(FailedError, asyncio.CancelledError):
            await task
    assert endpoint.budget.used_bytes == 0


def _port(url: str) -> int:
    return int(url.removeprefix("http://127.0.0.1:").partition("/")[0])
