"""The clients against a real model server, through a TCP proxy that can drop connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headwaiter import open_model
from headwaiter.api.keys import format_key_line, make_key
from headwaiter.api.model_server import ModelServer, ModelServerArgs
from headwaiter.client import AsyncClient, Client, History, InvalidInput, RetryPolicy, Step, Unauthenticated, WrongTask
from headwaiter.tasks.policy import HistoryStep
from loadtest.overhead.plain_grpc_server import grpc_server
from tests.conftest import Packages

pytestmark = pytest.mark.asyncio

TIMEOUT_SECONDS = 60.0
QUICK = RetryPolicy(initial_backoff=0.01, max_backoff=0.05)


class _NullMetrics:
    """Ignores all measurements."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None


@asynccontextmanager
async def run_model_server(
    packages: Packages, kind: str, *, keys: Path | None = None, **settings: Any
) -> AsyncIterator[str]:
    folder = packages(kind, "fp32").package.folder
    args = ModelServerArgs(name=kind, folder=folder, keys=keys, settings={"threads": 1, **settings})
    server = ModelServer(args, _NullMetrics())
    try:
        async with grpc_server(server) as address:
            yield address
    finally:
        server.close()


class TcpProxy:
    """Forwards bytes to `target`; `drop_connections` aborts all open connections."""

    def __init__(self, target: str) -> None:
        self.target, self.connections = target, 0
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, target: str) -> AsyncIterator[tuple[TcpProxy, str]]:
        proxy = cls(target)
        server = await asyncio.start_server(proxy._connect, "127.0.0.1", 0)
        async with server:
            yield proxy, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            proxy.drop_connections()

    def drop_connections(self) -> None:
        while self._writers:
            self._writers.pop().transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, port = self.target.split(":")
        target_reader, target_writer = await asyncio.open_connection(host, int(port))
        self._writers += [writer, target_writer]
        for source, sink in ((reader, target_writer), (target_reader, writer)):
            pump = asyncio.create_task(_pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while content := await source.read(1 << 16):
                sink.write(content)
        sink.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_episode_replica_lost_continues_with_same_actions(packages: Packages, kind: str) -> None:
    with open_model(packages("decision_transformer", "fp32").package.folder, threads=1) as model:
        states = _states(model)
        with model.episode(40.0) as expected:
            actions = [
                expected.step(state, None if step == 0 else 0.5 * step).continuous for step, state in enumerate(states)
            ]
    async with (
        run_model_server(packages, "decision_transformer") as first,
        run_model_server(packages, "decision_transformer") as second,
        TcpProxy.to(first) as (proxy, address),
    ):

        def switch_replica(step: int) -> None:
            if step in (3, 5):
                proxy.target = {first: second, second: first}[proxy.target]
                proxy.drop_connections()

        if kind == "async":
            actual = await _async_episode(address, states, switch_replica)
        else:
            loop = asyncio.get_running_loop()
            actual = await asyncio.to_thread(
                _sync_episode, address, states, lambda step: _run_in_loop(loop, switch_replica, step)
            )
        assert actual == [pytest.approx(action, abs=1e-5) for action in actions]
        assert proxy.connections == 3


async def _async_episode(address: str, states: list[list[float]], before_step: Any) -> list[Any]:
    actions = []
    async with (
        AsyncClient(address, retries=QUICK) as client,
        client.episode("decision_transformer", target_return=40.0) as episode,
    ):
        for step, state in enumerate(states):
            before_step(step)
            actions.append((await episode.step(state, None if step == 0 else 0.5 * step)).continuous)
    return actions


def _sync_episode(address: str, states: list[list[float]], before_step: Any) -> list[Any]:
    actions = []
    with (
        Client(address, retries=QUICK) as client,
        client.episode("decision_transformer", target_return=40.0) as episode,
    ):
        for step, state in enumerate(states):
            before_step(step)
            actions.append(episode.step(state, None if step == 0 else 0.5 * step).continuous)
    return actions


def _run_in_loop(loop: asyncio.AbstractEventLoop, function: Any, *args: Any) -> None:
    async def run() -> None:
        function(*args)

    asyncio.run_coroutine_threadsafe(run(), loop).result(TIMEOUT_SECONDS)


async def test_episode_invalid_step_raises_and_continues(packages: Packages) -> None:
    with open_model(packages("decision_transformer", "fp32").package.folder, threads=1) as model:
        states = _states(model)
        expected = model.act([HistoryStep(states[0])], 40.0).continuous
    async with run_model_server(packages, "decision_transformer") as address, AsyncClient(address) as client:
        async with client.episode("decision_transformer", target_return=40.0) as episode:
            with pytest.raises(InvalidInput, match="state") as caught:
                await episode.step([1.0])
            assert (caught.value.limit, caught.value.request_id is not None) == (len(states[0]), True)
            assert (await episode.step(states[0])).continuous == pytest.approx(expected, abs=1e-5)
        results = await client.act("decision_transformer", [History([Step(states[0])], 40.0)])
        assert results[0].continuous == pytest.approx(expected, abs=1e-5)


async def test_translation_matches_local_model(packages: Packages) -> None:
    with open_model(packages("marian", "fp32").package.folder, threads=1) as model:
        (expected,) = model.translate("ab cd. ef", num_beams=2, num_return_sequences=2, max_new_tokens=12)
    async with run_model_server(packages, "marian", limits={"text": 50}) as address, AsyncClient(address) as client:
        result = await client.translate("marian", "ab cd. ef", num_beams=2, num_return_sequences=2, max_new_tokens=12)
        assert [hypothesis.text for hypothesis in result.hypotheses] == [
            hypothesis.text for hypothesis in expected.hypotheses
        ]
        assert (result.score, result.usage.output_tokens) == (expected.score, expected.usage.output_tokens)
        stream = client.translate_stream("marian", "ab cd. ef", num_beams=1, max_new_tokens=12)
        chunks = [chunk async for chunk in stream]
        assert "".join(chunks) == stream.result.text
        description = await client.describe("marian")
        assert (description.task, description.limits["text"]) == ("translation", 50)
        with pytest.raises(InvalidInput) as caught:
            await client.translate("marian", ["ab", "a" * 51])
        assert (caught.value.field, caught.value.limit) == ("text[1]", 50)
        with pytest.raises(WrongTask, match="translation"):
            await client.detect("marian", b"x")
        with pytest.raises(WrongTask, match="translation"):
            await client.episode("marian", target_return=1).step([1.0])


async def test_key_invalid_raises_unauthenticated(packages: Packages, tmp_path: Path) -> None:
    key = make_key()
    (tmp_path / "keys.txt").write_text(format_key_line("test", key) + "\n")
    async with run_model_server(packages, "marian", keys=tmp_path / "keys.txt") as address:
        async with AsyncClient(address, key=key) as client:
            assert (await client.describe("marian")).name == "marian"
        async with AsyncClient(address, key="wrong") as client:
            with pytest.raises(Unauthenticated):
                await client.describe("marian")


def _states(model: Any) -> list[list[float]]:
    size = model.task.policy.state_size
    return [[0.1 * step - 0.05 * index for index in range(size)] for step in range(8)]
