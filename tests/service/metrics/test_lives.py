"""Counts while those who count come, go and are killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from service.metrics.page import Metrics, read_page
from service.metrics.table import PREFIX
from tests.service.metrics.kit import PROCESSES, Replica, fetch, parsed, samples, translated, value


def folders(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir()]


def test_counts_outlive_those_who_counted(start: Callable[..., Replica], port: int) -> None:
    drained, killed, living = start(), start(), start()
    for replica, calls in ((drained, 3), (killed, 4), (living, 5)):
        for _ in range(calls):
            replica.do("finished", "Translate", "OK", 0.02)
        replica.do("usage", 10, 20, 1)
        replica.do("stages", 1.0, 2.0, 30.0)
    before = samples(port)

    drained.end()
    killed.kill()

    after = samples(port)
    assert translated(before) == translated(after) == 12
    assert value(after, "request_seconds_count", method="Translate") == 12
    assert value(after, "request_seconds_sum", method="Translate") == pytest.approx(0.24)
    assert value(after, "request_seconds_bucket", method="Translate", le="0.01") == 0
    assert value(after, "request_seconds_bucket", method="Translate", le="0.025") == 12
    assert value(after, "stage_seconds_sum", stage="run") == pytest.approx(0.09)
    assert value(after, "input_tokens_total") == 30
    assert value(after, "output_tokens_total") == 60
    assert value(after, "images_total") == 3


def test_whoever_is_left_serves_the_page_of_all(start: Callable[..., Replica], port: int) -> None:
    replicas = [start() for _ in range(3)]
    for replica in replicas:
        replica.do("finished", "Translate", "OK", 0.02)

    replicas[0].kill()
    assert translated(samples(port)) == 3
    replicas[1].end()
    assert translated(samples(port)) == 3
    replicas[2].kill()
    with pytest.raises(ConnectionError):
        fetch(port)

    start().do("finished", "Translate", "OK", 0.02)
    assert translated(samples(port)) == 4


def test_gauges_are_of_the_living(start: Callable[..., Replica], port: int) -> None:
    drained, killed, living = start(), start(), start()
    for replica, rows, wait in ((drained, 1, 9.0), (killed, 10, 8.0), (living, 100, 1.0)):
        replica.do("ready", True)
        replica.do("observe_engine", {"rows_in_use": rows, "estimated_wait_seconds": wait})
        replica.do("describe", str(rows), "translation", "marian", "int8", "cpu")
    before = samples(port)

    drained.end()
    killed.kill()

    after = samples(port)
    assert (value(before, "rows_in_use"), value(after, "rows_in_use")) == (111, 100)
    assert (value(before, "estimated_wait_seconds"), value(after, "estimated_wait_seconds")) == (9, 1)
    assert (value(before, "ready"), value(after, "ready")) == (3, 1)
    versions = [dict(labels)["version"] for name, labels in after if name == PREFIX + "model_info"]
    assert versions == ["100"]


def test_a_closed_model_has_no_gauges_and_goes_on_counting(metrics: Metrics, port: int) -> None:
    model, other = metrics.of("marian"), metrics.of("vit")
    for each in (model, other):
        each.ready(True)

    model.close()
    model.close()
    model.observe_engine({"waiting": 7, "steps": 2})
    model.finished("Translate", "OK", 0.02)

    found = samples(port)
    assert value(found, "ready") is value(found, "queue_waiting") is None
    assert value(found, "ready", model="vit") == 1
    assert (translated(found), value(found, "steps_total")) == (1, 2)


def test_a_process_number_given_out_again_changes_nothing(start: Callable[..., Replica], port: int) -> None:
    first = start(pid=7)
    first.do("finished", "Translate", "OK", 0.02)
    first.do("observe_engine", {"waiting": 5, "steps": 40})
    first.kill()

    second = start(pid=7)
    second.do("observe_engine", {"steps": 2})

    found = samples(port)
    assert translated(found) == 1
    assert value(found, "steps_total") == 42
    assert value(found, "queue_waiting") is None


def test_what_the_dead_left_does_not_pile_up(start: Callable[..., Replica], port: int, folder: Path) -> None:
    living = start()
    for generation in range(1, 6):
        replica = start()
        replica.do("finished", "Translate", "OK", generation / 100)
        replica.do("finished", "Translate", "INTERNAL", 1.0)
        replica.kill()
        found = samples(port)
        assert (translated(found), translated(found, "INTERNAL")) == (generation, generation)
        assert value(found, "request_seconds_count", method="Translate") == 2 * generation
        assert len(folders(folder)) == 2
    assert value(found, "request_seconds_sum", method="Translate") == pytest.approx(0.15 + 5)
    living.end()


def test_folding_while_many_read_counts_everything_once(start: Callable[..., Replica], port: int) -> None:
    survivors = [start(), start()]
    over = threading.Event()

    def read() -> list[float]:
        pages = [0.0]
        while not over.is_set():
            with suppress(ConnectionError, HTTPException):  # it was the killed one's turn
                pages.append(translated(samples(port)) or 0)
        return pages

    def live_and_die() -> None:
        replica = start()
        for _ in range(3):
            replica.do("finished", "Translate", "OK", 0.02)
        replica.kill()

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for _ in range(8):
                live_and_die()
        finally:
            over.set()

    assert translated(samples(port)) == 24
    for reader in readers:
        assert reader.result() == sorted(reader.result())
        assert reader.result()[-1] <= 24
    for survivor in survivors:
        survivor.end()


def _fold_until(folder: Path, last: int) -> None:
    """Reads the page and is killed at the given touch of the disk."""
    touches = count(1)
    watched = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}

    def watch(event: str, _: tuple[Any, ...]) -> None:
        if event in watched and next(touches) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    read_page(folder)


def test_whoever_dies_while_folding_loses_and_doubles_nothing(
    start: Callable[..., Replica], tmp_path: Path, folder: Path
) -> None:
    for calls in (1, 2, 3):
        replica = start()
        for _ in range(calls):
            replica.do("finished", "Translate", "OK", 0.02)
        replica.kill()

    for touch in count(1):
        copy = shutil.copytree(folder, tmp_path / str(touch))
        folding = PROCESSES.Process(target=_fold_until, args=(copy, touch))
        folding.start()
        folding.join(60)
        found = parsed(generate_latest(read_page(copy)).decode())
        assert translated(found) == value(found, "request_seconds_count", method="Translate") == 6, touch
        assert len(folders(copy)) == 1, touch
        if folding.exitcode == 0:
            break
    assert touch > 15, "it was killed hardly anywhere"
