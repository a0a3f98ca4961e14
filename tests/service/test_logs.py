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

from service import logs
from service.engine.jobs import QueueFullError
from service.keys import make_key
from service.logs import JsonLines, Sparingly
from service.tasks.errors import InputError

FACTS = {
    "request_id": "7f3c",
    "model": "opus-mt-zh-en",
    "method": "Translate",
    "code": "INVALID_ARGUMENT",
    "ms": 12.25,
    "queue_ms": 0.5,
    "run_ms": 11.0,
    "field": "text[2]",
}
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def log() -> logging.Logger:
    logger = logging.Logger("headwaiter.requests", logging.INFO)
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.handlers[0].setFormatter(JsonLines())
    return logger


@pytest.fixture
def lines(log: logging.Logger) -> Lines:
    handler = log.handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    return lambda: [json.loads(line) for line in handler.stream.getvalue().splitlines()]


def test_a_finished_request_is_one_line_of_its_facts(log: logging.Logger, lines: Lines) -> None:
    log.info("text[2] has 61,000 characters", extra={"facts": FACTS})

    (line,) = lines()
    moment = datetime.fromisoformat(line.pop("time"))
    assert moment.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=5)
    head = {"level": "INFO", "logger": "headwaiter.requests", "message": "text[2] has 61,000 characters"}
    assert line == head | FACTS


def test_facts_that_there_are_none_of_are_left_out(log: logging.Logger, lines: Lines) -> None:
    log.info("answered", extra={"facts": FACTS | {"field": None, "queue_ms": 0.0}})

    (line,) = lines()
    assert "field" not in line
    assert line["queue_ms"] == 0.0


@pytest.mark.parametrize(
    "words", ["服务器崩溃了。", "two\nlines\r\n", "a\u2028b\x85c", "\ud800", '"quoted" \\', "\x00"]
)
def test_any_words_stay_on_one_line(log: logging.Logger, lines: Lines, words: str) -> None:
    log.info("%s", words, extra={"facts": {"model": words}})

    (line,) = lines()
    assert (line["message"], line["model"]) == (words, words)


def test_facts_of_other_types_are_told(log: logging.Logger, lines: Lines) -> None:
    log.info("odd", extra={"facts": {"at": {1}}})

    assert lines()[0]["at"] == "{1}"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_an_exception_is_a_field_with_its_causes_and_places(log: logging.Logger, lines: Lines) -> None:
    log.error("a bug", exc_info=raised(QueueFullError("4096 requests are waiting"), raised(KeyError("secret words"))))

    (line,) = lines()
    full, cause = line["exception"]
    assert (full["type"], full["message"]) == ("service.engine.jobs.QueueFullError", "4096 requests are waiting")
    assert cause["type"] == "builtins.KeyError"
    assert all(
        trace["trace"][0].endswith(" raised") and "test_logs.py:" in trace["trace"][0] for trace in (full, cause)
    )


@pytest.mark.parametrize("error", [ValueError("my diary"), KeyError("my diary"), UnicodeError("my diary")])
def test_what_others_exceptions_quote_is_not_told(log: logging.Logger, lines: Lines, error: Exception) -> None:
    log.error("a bug", exc_info=raised(error))

    (line,) = lines()
    assert "diary" not in json.dumps(line)
    assert line["exception"][0]["type"].endswith(type(error).__name__)


def test_an_exception_that_comes_from_itself_ends(log: logging.Logger, lines: Lines) -> None:
    error = InputError("wrong", field="text")
    error.__cause__ = error

    log.error("a bug", exc_info=error)

    assert {each["message"] for each in lines()[0]["exception"]} == {"wrong"}


def test_keys_are_never_told(log: logging.Logger, lines: Lines) -> None:
    key = make_key()

    log.error("key %s", key, extra={"facts": {"field": key}}, exc_info=raised(InputError(f"not {key}", field="key")))

    text = json.dumps(lines())
    assert key not in text
    assert text.count("hw_***") == 3


def test_of_many_in_a_second_a_few_are_told_and_the_rest_counted() -> None:
    moments = iter([0.1, 0.2, 0.3, 0.4, 1.0, 1.1, 5.0, 5.1])
    sparingly = Sparingly(most=2, clock=lambda: next(moments))

    assert [sparingly.tell() for _ in range(8)] == [0, 0, None, None, 2, 0, 0, 0]


def test_a_full_file_makes_room_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_LARGEST_FILE", 1000)
    monkeypatch.setattr(logs, "LOGGERS", ("rotating",))
    logs.setup_logs(file=tmp_path / "requests.log")
    for number in range(100):
        logging.getLogger("rotating").info("%d", number)

    kept = sorted(tmp_path.iterdir())
    assert [each.name for each in kept] == ["requests.log", "requests.log.1", "requests.log.2"]
    assert all(each.stat().st_size < 1200 for each in kept)
    assert json.loads(kept[0].read_text().splitlines()[-1])["message"] == "99"


SCRIPT = """
import logging, sys
others = [logging.getLogger(name) for name in (None, "ray", "ray.serve")]
before = [(each.level, list(each.handlers), each.propagate) for each in others]
from service.logs import setup_logs
setup_logs()
setup_logs()
logging.getLogger("headwaiter.requests").info("模型", extra={"facts": {"model": "模型"}})
logging.getLogger("service.keys").warning("keys stay")
logging.getLogger("service").debug("too small")
setup_logs("WARNING")
logging.getLogger("headwaiter.requests").info("no longer wanted")
assert before == [(each.level, list(each.handlers), each.propagate) for each in others]
"""


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_setup_writes_each_line_once_and_leaves_others_alone(encoding: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [(line["logger"], line["message"]) for line in lines] == [
        ("headwaiter.requests", "模型"),
        ("service.keys", "keys stay"),
    ]
    assert lines[0]["model"] == "模型"
