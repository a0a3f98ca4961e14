"""Connections whose headers are incomplete end in time, and others stay open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from headwaiter.serving.single_process import http_protocol
from tests.service.serving.single_process.conftest import Run

_REQUEST = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
_SECONDS = 0.5


@pytest.fixture(autouse=True)
def short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", _SECONDS)


@asynccontextmanager
async def _connection(run: Run) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with run({"texts": "bert"}) as (_, service), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.config.http.port)
        yield reader, writer
        writer.close()


async def _answer(reader: asyncio.StreamReader, writer: Any) -> bytes:
    writer.write(_REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
    return head + await reader.readexactly(length)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nhost:"])
async def test_half_sent_headers_close_the_connection(run: Run, sent: bytes) -> None:
    async with _connection(run) as (reader, writer):
        writer.write(sent)
        assert await reader.read() == b""


async def test_half_sent_headers_of_second_request_close_the_connection(run: Run) -> None:
    async with _connection(run) as (reader, writer):
        assert b" 200 " in await _answer(reader, writer)
        writer.write(_REQUEST[:20])
        assert await reader.read() == b""


async def test_headers_without_end_close_the_connection(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 600.0)
    async with _connection(run) as (reader, writer):
        writer.write(_REQUEST[:20])
        for index in range(200):
            writer.write(b"x-%d: %b\r\n" % (index, b"a" * 1000))
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def test_idle_connection_between_requests_stays_open(run: Run) -> None:
    async with _connection(run) as (reader, writer):
        for _ in range(2):
            assert b" 200 " in await _answer(reader, writer)
            await asyncio.sleep(3 * _SECONDS)
