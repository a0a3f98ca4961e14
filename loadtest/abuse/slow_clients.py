"""Slow clients: half-sent headers, trickled bodies, silent readers and idle calls do not hold up others."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import grpc
import grpc.aio

from headwaiter.api.methods import METHODS
from headwaiter.v1 import generation_pb2, policy_pb2, translation_pb2
from loadtest.abuse.http_connection import request_bytes
from loadtest.abuse.scenario import SharedRun, SharedScenario
from loadtest.abuse.target import wait_until

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SPARE_DESCRIPTORS = 8  # connections of the proxy to a replica that may stay open
_RECEIVE_BUFFER = 4096
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


def run(abuse: SharedRun) -> None:
    before = _descriptors(abuse)
    connections, kept = asyncio.run(_hold(abuse))
    abuse.add("connections of slow clients", f"{connections:,}")
    abuse.add("of these still open at the end", f"{kept:,}")
    is_closed = wait_until(lambda: _descriptors(abuse) <= before + _SPARE_DESCRIPTORS * len(abuse.target.models), 60)
    abuse.add(
        "open descriptors of the replicas, before and after",
        f"{before:,} and {_descriptors(abuse):,}",
        "no lasting growth",
        is_met=is_closed,
    )


def _descriptors(abuse: SharedRun) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pids in abuse.target.replicas().values() for pid in pids)


async def _hold(abuse: SharedRun) -> tuple[int, int]:
    """Open all connections, keep them as slow as they are for a while, and count those that the service kept open."""
    count, seconds = int(abuse.options.scaled(100, 20)), abuse.options.scaled(40, 6)
    http, grpc_port = urlsplit(abuse.target.service.http).port or 80, int(abuse.target.service.grpc.split(":")[1])
    model = abuse.target.model("translation") or abuse.target.models[0]
    path = f"/models/{model}/{'translate' if abuse.target.model('translation') else 'classify'}"
    half_head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n".encode()
    half_body = request_bytes("POST", path, (("content-type", "application/json"),), b" " * 10_000)[:-9_990]
    half_sent = [await _connect(http, half_head) for _ in range(count)]
    half_sent += [await _connect(grpc_port, _HTTP2_PREFACE) for _ in range(count)]
    trickled = [await _connect(http, half_body) for _ in range(count)]
    silent = [await _connect(http, _stream_request(abuse), silent=True) for _ in range(count // 4)]
    async with grpc.aio.insecure_channel(abuse.target.service.grpc, _OPTIONS) as channel:
        calls = [*_unsent_calls(channel, model, count // 2), *_silent_calls(channel, abuse, count // 4)]
        trickle = asyncio.gather(*(_trickle(connection, seconds) for connection in trickled))
        await asyncio.sleep(seconds)
        await trickle
        connections = [*half_sent, *trickled, *silent]
        kept = sum(_is_open(connection) for connection in connections) + sum(not call.done() for call in calls)
        for call in calls:
            call.cancel()
    for connection in connections:
        connection.close()
    return len(connections) + len(calls), kept


async def _connect(port: int, content: bytes, *, silent: bool = False) -> socket.socket:
    connection = socket.socket()
    if silent:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, ("127.0.0.1", port))
    await loop.sock_sendall(connection, content)
    return connection


async def _trickle(connection: socket.socket, seconds: float) -> None:
    """Send a byte per second until the service closes the connection."""
    with suppress(OSError):
        for _ in range(int(seconds)):
            await asyncio.get_running_loop().sock_sendall(connection, b" ")
            await asyncio.sleep(1)


def _is_open(connection: socket.socket) -> bool:
    try:
        while True:
            if not connection.recv(1 << 16):
                return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _stream_request(abuse: SharedRun) -> bytes:
    model, body = abuse.target.model("translation"), '{"text": "你好。' + "你好。" * 100 + '"}'
    path = f"/models/{model}/translate"
    headers = (("content-type", "application/json"), ("accept", "text/event-stream"))
    return request_bytes("POST", path, headers, body.encode())


def _unsent_calls(channel: grpc.aio.Channel, model: str, count: int) -> list[grpc.aio.Call]:
    """Unary calls whose message never comes."""

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.sleep(3600)
        yield b""

    method = channel.stream_unary(METHODS["Translate"].path)
    return [method(nothing(), metadata=[("application", model)]) for _ in range(count)]


def _silent_calls(channel: grpc.aio.Channel, abuse: SharedRun, count: int) -> list[grpc.aio.Call]:
    """Streams that nobody reads, and episodes without a step."""
    calls = []
    if (translator := abuse.target.model("translation")) is not None:
        message = translation_pb2.TranslateStreamRequest(text="你好。" * 50).SerializeToString()
        calls += [_stream(channel, "TranslateStream", message, translator) for _ in range(count)]
    if (writer := abuse.target.model("generation")) is not None:
        message = generation_pb2.GenerateStreamRequest(prompt="ab").SerializeToString()
        calls += [_stream(channel, "GenerateStream", message, writer) for _ in range(count)]
    if (policy := abuse.target.model("policy")) is not None:
        start = policy_pb2.EpisodeRequest(start=policy_pb2.Start(target_return=1.0)).SerializeToString()
        calls += [_idle_episode(channel, start, policy) for _ in range(count)]
    return calls


def _stream(channel: grpc.aio.Channel, method: str, message: bytes, model: str) -> grpc.aio.Call:
    return channel.unary_stream(METHODS[method].path)(message, metadata=[("application", model)])


def _idle_episode(channel: grpc.aio.Channel, start: bytes, model: str) -> grpc.aio.Call:
    async def only_start() -> AsyncIterator[bytes]:
        yield start
        await asyncio.sleep(3600)

    return channel.stream_stream(METHODS["Episode"].path)(only_start(), metadata=[("application", model)])


SCENARIO = SharedScenario("slow clients", "half-sent headers, trickled bodies, silent readers, idle calls", run)
