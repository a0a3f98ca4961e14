"""A small HTTP/1.1 client on raw sockets: it sends any bytes and can stop at any point."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_END_OF_HEAD = b"\r\n\r\n"
_HTTP_OK = 200


class MalformedResponseError(Exception):
    """The server's answer is not HTTP."""


@dataclass(slots=True)
class HttpResponse:
    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def code(self) -> str:
        """The gRPC code name of the JSON error, or the HTTP status."""
        if self.status == _HTTP_OK:
            return "OK"
        try:
            return str(json.loads(self.body)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return f"HTTP {self.status}"


class HttpConnection:
    """One connection that is opened on first use, kept alive, and opened again after the server closed it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, content: bytes) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        self._writer.write(content)
        await self._writer.drain()

    async def read_head(self) -> HttpResponse:
        """Read the status line and the headers; interim responses are skipped."""
        assert self._reader is not None
        while True:
            lines = (await self._reader.readuntil(_END_OF_HEAD)).decode("latin-1").split("\r\n")
            version, _, rest = lines[0].partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
                raise MalformedResponseError(f"the status line is {lines[0][:80]!r}")
            headers = dict(_header(line) for line in lines[1:] if line)
            if (status := int(rest[:3])) >= _HTTP_OK:
                return HttpResponse(status, headers)

    async def read_chunk(self) -> bytes:
        """Read a chunk of a chunked response; empty at its end."""
        assert self._reader is not None
        size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
        chunk = await self._reader.readexactly(size)
        await self._reader.readexactly(2)
        return chunk

    async def read_body(self, response: HttpResponse, *, is_head: bool = False) -> None:
        """Read the rest of a response, and close the connection if the server is going to."""
        assert self._reader is not None
        if is_head:
            pass
        elif response.headers.get("transfer-encoding", "").lower() == "chunked":
            while chunk := await self.read_chunk():
                response.body += chunk
        elif "content-length" in response.headers:
            response.body = await self._reader.readexactly(int(response.headers["content-length"]))
        else:
            response.body = await self._reader.read()
            self.close()
        if response.headers.get("connection", "").lower() == "close":
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def request_bytes(method: str, path: str, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _header(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip().lower(), value.strip()
