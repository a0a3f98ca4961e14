"""Upstream connections of a real Envoy, in front of a stub server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest

from deploy.gateway.settings import Rate
from tests.deploy.envoy_kit import Certificates, gateway

pytestmark = pytest.mark.slow
TIMEOUT_SECONDS = 60
UNLIMITED = Rate(per_second=1_000_000, burst=1_000_000)
CONCURRENCY = 1_100  # Envoy's default limit is 1,024


class BarrierServer(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method, once `parties` requests are in flight at the same time."""

    def __init__(self, parties: int = 1) -> None:
        self.parties = parties
        self.started = 0
        self.peers: set[str] = set()
        self._all_started = asyncio.Event()

    def service(self, _: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        self.peers.add(context.peer())
        self.started += 1
        if self.started >= self.parties:
            self._all_started.set()
        await asyncio.wait_for(self._all_started.wait(), TIMEOUT_SECONDS)
        return request


@asynccontextmanager
async def grpc_server(barrier: BarrierServer) -> AsyncIterator[int]:
    """Serve without limits on pings and pending requests, as HAProxy does."""
    options = [
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.server.max_pending_requests", CONCURRENCY),
        ("grpc.server.max_pending_requests_hard_limit", CONCURRENCY),
    ]
    server = grpc.aio.server(handlers=[barrier], options=options)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class TcpProxy:
    """Proxy in front of a server. After `cut` it discards all data and closes nothing, like a lost machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._cut_events: list[asyncio.Event] = []

    def cut(self) -> None:
        """Cut the current connections; later ones work."""
        for event in self._cut_events:
            event.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        cut = asyncio.Event()
        self._cut_events.append(cut)
        await asyncio.gather(self._copy(reader, upstream_writer, cut), self._copy(upstream_reader, writer, cut))

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, cut: asyncio.Event) -> None:
        with suppress(ConnectionError):
            while data := await source.read(1 << 16):
                if not cut.is_set():
                    target.write(data)
                    await target.drain()
            target.close()


def open_channel(address: str, certificates: Certificates) -> grpc.aio.Channel:
    options = [("grpc.use_local_subchannel_pool", 1)]  # do not share connections with other channels
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(certificates.authority), options)


async def call(channel: grpc.aio.Channel) -> bytes:
    response: bytes = await channel.unary_unary("/headwaiter.v1.Generation/Generate")(b"", timeout=TIMEOUT_SECONDS)
    return response


async def test_gateway_allows_more_concurrent_requests_than_envoy_default(certificates: Certificates) -> None:
    barrier = BarrierServer(CONCURRENCY)
    async with grpc_server(barrier) as port:
        with gateway(certificates, {"grpc": port, "http": port}, rate=UNLIMITED) as address:
            async with open_channel(address, certificates) as first, open_channel(address, certificates) as second:
                calls = [call((first, second)[number % 2]) for number in range(CONCURRENCY)]
                await asyncio.gather(*calls)
    assert barrier.started == CONCURRENCY


async def test_gateway_renews_upstream_connections(certificates: Certificates) -> None:
    barrier = BarrierServer()
    async with grpc_server(barrier) as port:
        ports = {"grpc": port, "http": port}
        with gateway(certificates, ports, connection_seconds=1, rate=UNLIMITED) as address:
            async with open_channel(address, certificates) as channel, asyncio.timeout(TIMEOUT_SECONDS):
                while len(barrier.peers) < 3:
                    await call(channel)


async def test_gateway_request_outlives_maximum_connection_age(certificates: Certificates) -> None:
    barrier = BarrierServer(parties=2)
    async with grpc_server(barrier) as port:
        with gateway(certificates, {"grpc": port, "http": port}, connection_seconds=1) as address:
            async with open_channel(address, certificates) as channel:
                long = asyncio.create_task(call(channel))
                _, pending = await asyncio.wait({long}, timeout=3)
                assert pending
                await call(channel)
                await asyncio.wait_for(long, TIMEOUT_SECONDS)
    assert len(barrier.peers) == 2


async def test_gateway_closes_unresponsive_connection(certificates: Certificates) -> None:
    barrier = BarrierServer(parties=2)
    async with grpc_server(barrier) as port:
        tcp_proxy = TcpProxy(port)
        relay = await asyncio.start_server(tcp_proxy.handle, "127.0.0.1", 0)
        ports = {"grpc": relay.sockets[0].getsockname()[1], "http": port}
        with gateway(certificates, ports, connection_seconds=TIMEOUT_SECONDS) as address:
            async with open_channel(address, certificates) as channel:
                lost = asyncio.create_task(call(channel))
                async with asyncio.timeout(TIMEOUT_SECONDS):
                    while not barrier.started:
                        await asyncio.sleep(0.01)
                tcp_proxy.cut()
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await asyncio.wait_for(lost, TIMEOUT_SECONDS)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE  # not the deadline of the client
                await call(channel)
        relay.close()
