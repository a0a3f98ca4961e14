"""Clients of both kinds, beside a server that echoes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.client import (
    AsyncClient,
    Client,
    HeadwaiterError,
    Retries,
)
from tests.peer_kit import Peer, serving

ONE_PIXEL = b"not really an image"
QUICK = Retries(first_wait=0.001, longest_wait=0.002, patience=0.5)

Ask = Callable[..., Any]
Streamed = Callable[..., tuple[list[str], Any]]
Steps = Callable[..., list[Any]]


@pytest.fixture
def peer() -> Iterator[Peer]:
    with serving(Peer()) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(kind: str, peer: Peer) -> Ask:
    def sync(verb: str, *args: Any, terms: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        with Client(peer.address, **{"retries": QUICK, **(terms or {})}) as client:
            return getattr(client, verb)(*args, **kwargs)

    async def coroutine(verb: str, *args: Any, terms: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        async with AsyncClient(peer.address, **{"retries": QUICK, **(terms or {})}) as client:
            return await getattr(client, verb)(*args, **kwargs)

    return sync if kind == "sync" else lambda *args, **kwargs: asyncio.run(coroutine(*args, **kwargs))


@pytest.fixture
def streamed(kind: str, peer: Peer) -> Streamed:
    def sync(verb: str, *args: Any, heard: list[str], **kwargs: Any) -> Any:
        with Client(peer.address, retries=QUICK) as client:
            stream = getattr(client, verb)(*args, **kwargs)
            heard.extend(stream)
            return stream.result

    async def coroutine(verb: str, *args: Any, heard: list[str], **kwargs: Any) -> Any:
        async with AsyncClient(peer.address, retries=QUICK) as client:
            stream = getattr(client, verb)(*args, **kwargs)
            async for piece in stream:
                heard.append(piece)
            return stream.result

    def run(verb: str, *args: Any, heard: list[str] | None = None, **kwargs: Any) -> tuple[list[str], Any]:
        pieces: list[str] = [] if heard is None else heard
        if kind == "sync":
            return pieces, sync(verb, *args, heard=pieces, **kwargs)
        return pieces, asyncio.run(coroutine(verb, *args, heard=pieces, **kwargs))

    return run


@pytest.fixture
def stepped(kind: str, peer: Peer) -> Steps:
    """The actions of an episode; an error stands in for an action."""

    def sync(steps: list[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        answers: list[Any] = []
        with (
            Client(peer.address, retries=QUICK) as client,
            client.episode("peer", target_return=40, **kwargs) as episode,
        ):
            for state, reward, taken in steps:
                try:
                    answers.append(episode.step(state, reward, taken=taken).discrete)
                except HeadwaiterError as error:
                    answers.append(type(error))
            return [*answers, episode.history]

    async def coroutine(steps: list[tuple[Any, ...]], **kwargs: Any) -> list[Any]:
        answers: list[Any] = []
        async with (
            AsyncClient(peer.address, retries=QUICK) as client,
            client.episode("peer", target_return=40, **kwargs) as episode,
        ):
            for state, reward, taken in steps:
                try:
                    answers.append((await episode.step(state, reward, taken=taken)).discrete)
                except HeadwaiterError as error:
                    answers.append(type(error))
            return [*answers, episode.history]

    return sync if kind == "sync" else lambda *args, **kwargs: asyncio.run(coroutine(*args, **kwargs))
