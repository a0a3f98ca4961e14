"""Structured logs, one JSON object per line. Lines never contain request contents or API keys."""

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

from headwaiter.api.keys import PREFIX

LOGGERS = ("headwaiter",)
_KEY = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]{32,}")
# Exceptions of these modules name only fields, limits and shapes; messages of others may contain request contents.
_QUOTED_EXCEPTION_MODULES = ("headwaiter.", "onnxruntime.")
_MAX_EXCEPTION_CHAIN = 8
_MAX_FILE_BYTES = 64 << 20
_MAX_REJECTIONS_PER_SECOND = 20
_encode = json.JSONEncoder(default=repr).encode


class JsonLineFormatter(logging.Formatter):
    """Formats records as ASCII JSON, so that lines are valid in any stream encoding.

    The fields in `extra={"log_fields": {...}}` are added to the object, except those that are None.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        log_fields = getattr(record, "log_fields", {})
        line |= {name: value for name, value in log_fields.items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = [_describe_exception(error) for error in _chain(record.exc_info[1])]
        return _KEY.sub(f"{PREFIX}***", _encode(line))


class LogRateLimiter:
    """Limits the log lines per second and counts the suppressed ones. During overload, logging every rejection would
    use CPU time that accepted requests need; metrics count them all."""

    def __init__(
        self, max_per_second: int = _MAX_REJECTIONS_PER_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_per_second, self._clock = max_per_second, clock
        self._second, self._logged, self._suppressed = 0, 0, 0

    def try_acquire(self) -> int | None:
        """The number of lines suppressed since the last logged one, or None if this line must be suppressed too."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._logged = second, 0
        if self._logged >= self._max_per_second:
            self._suppressed += 1
            return None
        self._logged += 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed


class _RotatingLogFile(RotatingFileHandler):
    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: ARG002, N802
        """Avoids the file system access and the second formatting per record of the base class."""
        return self.stream is not None and self.stream.tell() > self.maxBytes


def configure_logging(level: int | str = logging.INFO, *, file: Path | None = None) -> None:
    """Send the project's loggers to `file` or to stderr; other loggers are unaffected. Later calls only change the
    level.

    Replicas need a file, because Ray Serve buffers stderr in throughput mode.
    """
    handler: logging.Handler = (
        logging.StreamHandler()
        if file is None
        else _RotatingLogFile(file, maxBytes=_MAX_FILE_BYTES, backupCount=2, encoding="utf-8", delay=True)
    )
    handler.setFormatter(JsonLineFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not any(isinstance(existing.formatter, JsonLineFormatter) for existing in logger.handlers):
            logger.addHandler(handler)
            logger.propagate = False


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and its causes, outermost first."""
    for _ in range(_MAX_EXCEPTION_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _describe_exception(error: BaseException) -> dict[str, Any]:
    exception_type = type(error)
    description: dict[str, Any] = {"type": f"{exception_type.__module__}.{exception_type.__qualname__}"}
    if description["type"].startswith(_QUOTED_EXCEPTION_MODULES):
        description["message"] = str(error)
    frames = extract_tb(error.__traceback__)
    description["trace"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return description
