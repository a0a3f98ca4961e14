from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headwaiter.api import logs
from headwaiter.api.keys import make_key
from headwaiter.api.logs import JsonLineFormatter, LogRateLimiter
from headwaiter.engine.jobs import QueueFullError
from headwaiter.tasks.errors import InputError

LOG_FIELDS = {
    "request_id": "7f3c",
    "model": "opus-mt-zh-en",
    "method": "Translate",
    "code": "INVALID_ARGUMENT",
    "duration_ms": 12.25,
    "queue_ms": 0.5,
    "run_ms": 11.0,
    "field": "text[2]",
}
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def log() -> logging.Logger:
    logger = logging.Logger("headwaiter.requests", logging.INFO)
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.handlers[0].setFormatter(JsonLineFormatter())
    return logger


@pytest.fixture
def lines(log: logging.Logger) -> Lines:
    handler = log.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    return lambda: [json.loads(line) for line in handler.stream.getvalue().splitlines()]


def test_record_is_one_json_line_with_log_fields(log: logging.Logger, lines: Lines) -> None:
    log.info("text[2] has 61,000 characters", extra={"log_fields": LOG_FIELDS})

    (line,) = lines()
    time = datetime.fromisoformat(line.pop("time"))
    assert time.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - time) < timedelta(minutes=5)
    head = {"level": "INFO", "logger": "headwaiter.requests", "message": "text[2] has 61,000 characters"}
    assert line == head | LOG_FIELDS


def test_log_field_none_is_omitted(log: logging.Logger, lines: Lines) -> None:
    log.info("completed", extra={"log_fields": LOG_FIELDS | {"field": None, "queue_ms": 0.0}})

    (line,) = lines()
    assert "field" not in line
    assert line["queue_ms"] == 0.0


@pytest.mark.parametrize("text", ["服务器崩溃了。", "two\nlines\r\n", "a\u2028b\x85c", "\ud800", '"quoted" \\', "\x00"])
def test_any_text_stays_on_one_line(log: logging.Logger, lines: Lines, text: str) -> None:
    log.info("%s", text, extra={"log_fields": {"model": text}})

    (line,) = lines()
    assert (line["message"], line["model"]) == (text, text)


def test_log_field_of_unsupported_type_is_logged_as_repr(log: logging.Logger, lines: Lines) -> None:
    log.info("odd", extra={"log_fields": {"at": {1}}})

    assert lines()[0]["at"] == "{1}"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_exception_is_logged_with_causes_and_traces(log: logging.Logger, lines: Lines) -> None:
    log.error("a bug", exc_info=raised(QueueFullError("4096 requests are queued"), raised(KeyError("a secret"))))

    (line,) = lines()
    error, cause = line["exception"]
    assert (error["type"], error["message"]) == ("headwaiter.engine.jobs.QueueFullError", "4096 requests are queued")
    assert cause["type"] == "builtins.KeyError"
    for exception in (error, cause):
        first_frame = exception["trace"][0]
        assert first_frame.endswith(" raised")
        assert "test_logs.py:" in first_frame


@pytest.mark.parametrize("error", [ValueError("a secret"), KeyError("a secret"), UnicodeError("a secret")])
def test_message_of_foreign_exception_is_not_logged(log: logging.Logger, lines: Lines, error: Exception) -> None:
    log.error("a bug", exc_info=raised(error))

    (line,) = lines()
    assert "secret" not in json.dumps(line)
    assert line["exception"][0]["type"].endswith(type(error).__name__)


def test_exception_with_cyclic_cause_is_logged(log: logging.Logger, lines: Lines) -> None:
    error = InputError("invalid", field="text")
    error.__cause__ = error

    log.error("a bug", exc_info=error)

    assert {exception["message"] for exception in lines()[0]["exception"]} == {"invalid"}


def test_api_keys_are_masked(log: logging.Logger, lines: Lines) -> None:
    key = make_key()

    log.error(
        "key %s", key, extra={"log_fields": {"field": key}}, exc_info=raised(InputError(f"not {key}", field="key"))
    )

    text = json.dumps(lines())
    assert key not in text
    assert text.count("hw_***") == 3


def test_rate_limiter_suppresses_and_counts_excess_lines() -> None:
    times = iter([0.1, 0.2, 0.3, 0.4, 1.0, 1.1, 5.0, 5.1])
    limiter = LogRateLimiter(max_per_second=2, clock=lambda: next(times))

    assert [limiter.try_acquire() for _ in range(8)] == [0, 0, None, None, 2, 0, 0, 0]


def test_log_file_rotates_at_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MAX_FILE_BYTES", 1000)
    monkeypatch.setattr(logs, "LOGGERS", ("rotating",))
    logs.configure_logging(file=tmp_path / "requests.log")
    for number in range(100):
        logging.getLogger("rotating").info("%d", number)

    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["requests.log", "requests.log.1", "requests.log.2"]
    assert all(file.stat().st_size < 1200 for file in files)
    assert json.loads(files[0].read_text().splitlines()[-1])["message"] == "99"


SCRIPT = """
import logging, sys
foreign = [logging.getLogger(name) for name in (None, "ray", "ray.serve")]
before = [(logger.level, list(logger.handlers), logger.propagate) for logger in foreign]
from headwaiter.api.logs import configure_logging
configure_logging()
configure_logging()
logging.getLogger("headwaiter.requests").info("模型", extra={"log_fields": {"model": "模型"}})
logging.getLogger("headwaiter.api.keys").warning("reload failed")
logging.getLogger("headwaiter").debug("below the level")
configure_logging("WARNING")
logging.getLogger("headwaiter.requests").info("below the new level")
assert before == [(logger.level, list(logger.handlers), logger.propagate) for logger in foreign]
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_configure_logging_logs_once_and_leaves_foreign_loggers_unchanged(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    command = [sys.executable, "-c", SCRIPT]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    assert process.returncode == 0, process.stderr
    lines = [json.loads(line) for line in process.stderr.splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("headwaiter.requests", "模型"),
        ("headwaiter.api.keys", "reload failed"),
    ]
    assert lines[0]["model"] == "模型"
