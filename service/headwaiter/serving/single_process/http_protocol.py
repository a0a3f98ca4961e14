"""Limits for requests whose headers are incomplete, which uvicorn lets wait for ever and grow without bounds."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADER_SECONDS = 10.0  # as `timeout http-request` of HAProxy
MAX_HEADER_BYTES = 64 << 10

_Base: Any = AutoHTTPProtocol


class LimitedHttpProtocol(_Base):
    """Closes connections that do not complete the headers of a request in time or that send too many of them.

    The time runs from the start of the connection or from the first byte after a response. A client that still sends
    the body of a request that has been answered is closed in the same way.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._header_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._has_request():
            self._stop_timer()
            return
        self._header_bytes += len(data)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._close()
        elif self._header_timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS, self._close_if_waiting)

    def _stop_timer(self) -> None:
        self._header_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _close_if_waiting(self) -> None:
        self._header_timer = None
        if not self._has_request():
            self._close()

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
