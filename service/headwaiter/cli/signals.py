"""Signals of a serving process: stop and reload."""

from __future__ import annotations

import signal
import time
from types import FrameType


class StopRequested(BaseException):
    """Raised in the main thread by SIGINT and SIGTERM."""


class Signals:
    """Signal handlers: SIGINT and SIGTERM raise StopRequested, SIGHUP is reported by `wait_for_hangup`."""

    def __init__(self) -> None:
        self._hangup_received = False

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._handle)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGHUP:
            raise StopRequested
        self._hangup_received = True

    def wait_for_hangup(self) -> None:
        while not self._hangup_received:
            time.sleep(0.2)
        self._hangup_received = False
