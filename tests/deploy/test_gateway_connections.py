"""A real Envoy and the connections behind it; who answers there is of no matter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from deploy.gateway.settings import Rate
from tests.deploy.envoy_kit import Papers, gateway

pytestmark = pytest.mark.slow
SECONDS = 60
UNLIMITED = Rate(per_second=1_000_000, burst=1_000_000)
MORE_THAN_ENVOYS_DEFAULT = 1_100


class Waiter(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method, once so many calls are under way together."""

    def __init__(self, together: int = 1) -> None:
        self.together = together
        self.under_way = 0
        self.peers: set[str] = set()
        self._enough = asyncio.Event()

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        self.peers.add(context.peer())
        self.under_way += 1
        if self.under_way >= self.together:
            self._enough.set()
        await self._enough.wait()
        return request


@asynccontextmanager
async def listening(waiter: Waiter) -> AsyncIterator[int]:
    """As HAProxy does it takes what comes, and minds no pings."""
    options = [
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server.max_pending_requests", MORE_THAN_ENVOYS_DEFAULT),
        ("grpc.server.max_pending_requests_hard_limit", MORE_THAN_ENVOYS_DEFAULT),
    ]
    server = grpc.aio.server(handlers=[waiter], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class Wire:
    """Between the gateway and a server; cut, it swallows what comes and closes nothing, as a lost machine does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cut: list[asyncio.Event] = []

    def cut(self) -> None:
        """The connections of now; later ones are whole."""
        for each in self._cut:
            each.set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        cut = asyncio.Event()
        self._cut.append(cut)
        await asyncio.gather(self._carry(reader, back, cut), self._carry(there, writer, cut))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if not cut.is_set():
                    target.write(data)
                    await target.drain()
            target.close()


def channel(address: str, papers: Papers) -> grpc.aio.Channel:
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(papers.authority), options)


async def call(through: grpc.aio.Channel) -> bytes:
    answer: bytes = await through.unary_unary("/headwaiter.v1.Generation/Generate")(b"", timeout=SECONDS)
    return answer


async def test_more_calls_together_than_envoy_would_let_through_by_itself(papers: Papers) -> None:
    waiter = Waiter(MORE_THAN_ENVOYS_DEFAULT)
    async with listening(waiter) as port:
        with gateway(papers, {"grpc": port, "http": port}, rate=UNLIMITED) as address:
            async with channel(address, papers) as one, channel(address, papers) as two:
                calls = [call((one, two)[number % 2]) for number in range(MORE_THAN_ENVOYS_DEFAULT)]
                await asyncio.gather(*calls)
    assert waiter.under_way == MORE_THAN_ENVOYS_DEFAULT


async def test_connections_are_renewed_so_that_calls_find_new_pods(papers: Papers) -> None:
    waiter = Waiter()
    async with listening(waiter) as port:
        ports = {"grpc": port, "http": port}
        with gateway(papers, ports, connection_seconds=1, rate=UNLIMITED) as address:
            async with channel(address, papers) as through, asyncio.timeout(SECONDS):
                while len(waiter.peers) < 3:
                    await call(through)


async def test_a_call_may_last_longer_than_its_connection_is_used_for_others(papers: Papers) -> None:
    waiter = Waiter(together=2)
    async with listening(waiter) as port:
        with gateway(papers, {"grpc": port, "http": port}, connection_seconds=1) as address:
            async with channel(address, papers) as through:
                long = asyncio.create_task(call(through))
                _, still_going = await asyncio.wait({long}, timeout=3)
                assert still_going
                await call(through)
                await long
    assert len(waiter.peers) == 2


async def test_calls_on_a_connection_that_fell_silent_end_and_others_go_elsewhere(papers: Papers) -> None:
    waiter = Waiter(together=2)
    async with listening(waiter) as port:
        wire = Wire(port)
        relay = await asyncio.start_server(wire.join, "127.0.0.1", 0)
        ports = {"grpc": relay.sockets[0].getsockname()[1], "http": port}
        with gateway(papers, ports, connection_seconds=SECONDS) as address:
            async with channel(address, papers) as through:
                lost = asyncio.create_task(call(through))
                while not waiter.under_way:
                    await asyncio.sleep(0.01)
                wire.cut()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await lost
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # not the caller's own deadline
                await call(through)
        relay.close()
