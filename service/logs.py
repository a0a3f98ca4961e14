"""Logs as lines of JSON. A line holds what was named for it, and never what a request held or a key."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from traceback import extract_tb
from typing import Any

from service.keys import PREFIX

LOGGERS = ("headwaiter", "service")
_KEY = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]{32,}")
_SPOKEN = ("service.", "onnxruntime.")
"""Whose exceptions are quoted: they speak of fields, limits and shapes. Others may quote what they were given."""
_LONGEST_CHAIN = 8
_LARGEST_FILE = 64 << 20
_REFUSALS = 20  # told of in a second
_encode = json.JSONEncoder(default=repr).encode


class JsonLines(logging.Formatter):
    """Pure ASCII: a line stays a line, and JSON, whatever the stream makes of other characters.

    A record's `facts` (`extra={"facts": {...}}`) become fields, those that are None excepted.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        facts = getattr(record, "facts", {})
        line |= {name: value for name, value in facts.items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = [_told(error) for error in _chain(record.exc_info[1])]
        return _KEY.sub(f"{PREFIX}***", _encode(line))


class Sparingly:
    """Of what happens hundreds of times a second, a few times a second are told, and how many were not. When a model
    is overloaded, writing of each refusal takes time from the answers; metrics count them all."""

    def __init__(self, most: int = _REFUSALS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._second, self._told, self._untold = 0, 0, 0

    def tell(self) -> int | None:
        """How many have not been told of since the last; None if this one should not be either."""
        now = int(self._clock())
        if now != self._second:
            self._second, self._told = now, 0
        if self._told >= self._most:
            self._untold += 1
            return None
        self._told += 1
        untold, self._untold = self._untold, 0
        return untold


class _Rotating(RotatingFileHandler):
    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: ARG002, N802
        """Without asking the file system at each line, nor writing the line twice to know its length."""
        return self.stream is not None and self.stream.tell() > self.maxBytes


def setup_logs(level: int | str = logging.INFO, *, file: Path | None = None) -> None:
    """This project's loggers write to the file, or to stderr; all others, Ray's too, stay as they are. Calling it
    again changes the level alone.

    A replica needs a file: in its throughput mode Ray Serve holds back what goes to stderr until there is much of it.
    """
    handler: logging.Handler = (
        logging.StreamHandler()
        if file is None
        else _Rotating(file, maxBytes=_LARGEST_FILE, backupCount=2, encoding="utf-8", delay=True)
    )
    handler.setFormatter(JsonLines())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not any(isinstance(each.formatter, JsonLines) for each in logger.handlers):
            logger.addHandler(handler)
            logger.propagate = False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it came from, what that came from."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _told(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    told: dict[str, Any] = {"type": f"{kind.__module__}.{kind.__qualname__}"}
    if told["type"].startswith(_SPOKEN):
        told["message"] = str(error)
    told["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in extract_tb(error.__traceback__)]
    return told
