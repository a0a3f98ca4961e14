"""Fixtures that run the same test with the sync and the async client against an echo server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headwaiter.client import AsyncClient, Client, HeadwaiterError, RetryPolicy
from tests.echo_server_kit import EchoServer, run_server

IMAGE_BYTES = b"image file content."
QUICK = RetryPolicy(initial_backoff=0.001, max_backoff=0.002, attempt_timeout=0.5)

Caller = Callable[..., Any]
StreamRunner = Callable[..., tuple[list[str], Any]]
EpisodeRunner = Callable[..., list[Any]]


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with run_server(EchoServer()) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def client_kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def call(client_kind: str, server: EchoServer) -> Caller:
    def sync(operation: str, *args: Any, client_options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        with Client(server.address, **{"retries": QUICK, **(client_options or {})}) as client:
            return getattr(client, operation)(*args, **kwargs)

    async def coroutine(operation: str, *args: Any, client_options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        async with AsyncClient(server.address, **{"retries": QUICK, **(client_options or {})}) as client:
            return await getattr(client, operation)(*args, **kwargs)

    return sync if client_kind == "sync" else lambda *args, **kwargs: asyncio.run(coroutine(*args, **kwargs))


@pytest.fixture
def stream_text(client_kind: str, server: EchoServer) -> StreamRunner:
    def sync(operation: str, *args: Any, chunks: list[str], **kwargs: Any) -> Any:
        with Client(server.address, retries=QUICK) as client:
            stream = getattr(client, operation)(*args, **kwargs)
            chunks.extend(stream)
            return stream.result

    async def coroutine(operation: str, *args: Any, chunks: list[str], **kwargs: Any) -> Any:
        async with AsyncClient(server.address, retries=QUICK) as client:
            stream = getattr(client, operation)(*args, **kwargs)
            async for chunk in stream:
                chunks.append(chunk)
            return stream.result

    def run(operation: str, *args: Any, chunks: list[str] | None = None, **kwargs: Any) -> tuple[list[str], Any]:
        received: list[str] = [] if chunks is None else chunks
        if client_kind == "sync":
            return received, sync(operation, *args, chunks=received, **kwargs)
        return received, asyncio.run(coroutine(operation, *args, chunks=received, **kwargs))

    return run


@pytest.fixture
def run_episode(client_kind: str, server: EchoServer) -> EpisodeRunner:
    """Return the actions of an episode, with error types in place of failed ones, followed by its history."""

    def sync(steps: list[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        outcomes: list[Any] = []
        with (
            Client(server.address, retries=QUICK) as client,
            client.episode("echo", target_return=40, **kwargs) as episode,
        ):
            for state, reward, taken in steps:
                try:
                    outcomes.append(episode.step(state, reward, taken=taken).discrete)
                except HeadwaiterError as error:
                    outcomes.append(type(error))
            return [*outcomes, episode.history]

    async def coroutine(steps: list[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        outcomes: list[Any] = []
        async with (
            AsyncClient(server.address, retries=QUICK) as client,
            client.episode("echo", target_return=40, **kwargs) as episode,
        ):
            for state, reward, taken in steps:
                try:
                    outcomes.append((await episode.step(state, reward, taken=taken)).discrete)
                except HeadwaiterError as error:
                    outcomes.append(type(error))
            return [*outcomes, episode.history]

    return sync if client_kind == "sync" else lambda *args, **kwargs: asyncio.run(coroutine(*args, **kwargs))
