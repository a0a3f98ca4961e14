"""The client and the service itself, with a wire between them that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from loadtest.plain import listening
from service import open_model
from service.client import AsyncClient, Client, History, InvalidInput, Retries, Step, Unauthenticated, WrongTask
from service.host import HostArgs, ModelHost
from service.keys import line_for, make_key
from service.tasks.policy import Moment
from tests.conftest import Packages

pytestmark = pytest.mark.asyncio

QUICK = Retries(first_wait=0.01, longest_wait=0.05)


class _Uncounted:
    """Metrics that nobody reads."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_facts: None


@asynccontextmanager
async def served(packages: Packages, kind: str, **args: Any) -> AsyncIterator[str]:
    folder = packages(kind, "fp32").package.folder
    host = ModelHost(HostArgs(name=kind, folder=folder, threads=1, **args), _Uncounted())
    try:
        async with listening(host) as address:
            yield address
    finally:
        host.close()


class Wire:
    """Forwards bytes to whoever is behind it; when it is cut, all connections through it are gone."""

    def __init__(self, target: str) -> None:
        self.target, self.connections = target, 0
        self._writers: list[asyncio.StreamWriter] = []
        self._pumps: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def to(cls, target: str) -> AsyncIterator[tuple[Wire, str]]:
        wire = cls(target)
        server = await asyncio.start_server(wire._connect, "127.0.0.1", 0)
        async with server:
            yield wire, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            wire.cut()

    def cut(self) -> None:
        while self._writers:
            self._writers.pop().transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        host, port = self.target.split(":")
        onward_reader, onward_writer = await asyncio.open_connection(host, int(port))
        self._writers += [writer, onward_writer]
        for source, sink in ((reader, onward_writer), (onward_reader, writer)):
            pump = asyncio.create_task(_pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while content := await source.read(1 << 16):
            sink.write(content)
        sink.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_episode_moves_to_another_replica(packages: Packages, kind: str) -> None:
    """And acts there as it would have without the break."""
    with open_model(packages("decision_transformer", "fp32").package.folder, threads=1) as model:
        states = _states(model)
        with model.episode(40.0) as expected:
            actions = [
                expected.step(state, None if step == 0 else 0.5 * step).continuous for step, state in enumerate(states)
            ]
    async with (
        served(packages, "decision_transformer") as first,
        served(packages, "decision_transformer") as second,
        Wire.to(first) as (wire, address),
    ):

        def break_at(step: int) -> None:
            if step in (3, 5):
                wire.target = {first: second, second: first}[wire.target]
                wire.cut()

        if kind == "async":
            got = await _async_episode(address, states, break_at)
        else:
            loop = asyncio.get_running_loop()
            got = await asyncio.to_thread(_sync_episode, address, states, lambda step: _in(loop, break_at, step))
        assert got == [pytest.approx(action, abs=1e-5) for action in actions]
        assert wire.connections == 3


async def _async_episode(address: str, states: list[list[float]], before: Any) -> list[Any]:
    actions = []
    async with (
        AsyncClient(address, retries=QUICK) as client,
        client.episode("decision_transformer", target_return=40.0) as episode,
    ):
        for step, state in enumerate(states):
            before(step)
            actions.append((await episode.step(state, None if step == 0 else 0.5 * step)).continuous)
    return actions


def _sync_episode(address: str, states: list[list[float]], before: Any) -> list[Any]:
    actions = []
    with (
        Client(address, retries=QUICK) as client,
        client.episode("decision_transformer", target_return=40.0) as episode,
    ):
        for step, state in enumerate(states):
            before(step)
            actions.append(episode.step(state, None if step == 0 else 0.5 * step).continuous)
    return actions


def _in(loop: asyncio.AbstractEventLoop, function: Any, *args: Any) -> None:
    async def run() -> None:
        function(*args)

    asyncio.run_coroutine_threadsafe(run(), loop).result()


async def test_a_wrong_step_is_told_and_the_episode_goes_on(packages: Packages) -> None:
    with open_model(packages("decision_transformer", "fp32").package.folder, threads=1) as model:
        states = _states(model)
        expected = model.act([Moment(states[0])], 40.0).continuous
    async with served(packages, "decision_transformer") as address, AsyncClient(address) as client:
        async with client.episode("decision_transformer", target_return=40.0) as episode:
            with pytest.raises(InvalidInput, match="state has 1 numbers") as caught:
                await episode.step([1.0])
            assert (caught.value.limit, caught.value.request_id is not None) == (len(states[0]), True)
            assert (await episode.step(states[0])).continuous == pytest.approx(expected, abs=1e-5)
        found = await client.act("decision_transformer", [History([Step(states[0])], 40.0)])
        assert found[0].continuous == pytest.approx(expected, abs=1e-5)


async def test_words(packages: Packages) -> None:
    with open_model(packages("marian", "fp32").package.folder, threads=1) as model:
        (expected,) = model.translate("ab cd. ef", beams=2, best=2, max_new_tokens=12)
    async with served(packages, "marian", limits={"text": 50}) as address, AsyncClient(address) as client:
        found = await client.translate("marian", "ab cd. ef", beams=2, best=2, max_new_tokens=12)
        assert [one.text for one in found.hypotheses] == [one.text for one in expected.hypotheses]
        assert (found.score, found.usage.output_tokens) == (expected.score, expected.usage.output_tokens)
        stream = client.translate_stream("marian", "ab cd. ef", beams=1, max_new_tokens=12)
        pieces = [piece async for piece in stream]
        assert "".join(pieces) == stream.result.text
        described = await client.describe("marian")
        assert (described.task, described.limits["text"]) == ("translation", 50)
        with pytest.raises(InvalidInput) as caught:
            await client.translate("marian", ["ab", "a" * 51])
        assert (caught.value.field, caught.value.limit) == ("text[1]", 50)
        with pytest.raises(WrongTask, match="does translation"):
            await client.detect("marian", b"x")
        with pytest.raises(WrongTask, match="does translation"):
            await client.episode("marian", target_return=1).step([1.0])


async def test_keys(packages: Packages, tmp_path: Path) -> None:
    key = make_key()
    (tmp_path / "keys.txt").write_text(line_for("test", key) + "\n")
    async with served(packages, "marian", keys=tmp_path / "keys.txt") as address:
        async with AsyncClient(address, key=key) as client:
            assert (await client.describe("marian")).name == "marian"
        async with AsyncClient(address, key="wrong") as client:
            with pytest.raises(Unauthenticated):
                await client.describe("marian")


def _states(model: Any) -> list[list[float]]:
    size = model.task.policy.state_size
    return [[0.1 * step - 0.05 * place for place in range(size)] for step in range(8)]
