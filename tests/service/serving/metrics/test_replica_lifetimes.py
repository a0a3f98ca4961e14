"""Metrics while replicas start, drain and are killed."""

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

from headwaiter.serving.metrics.definitions import PREFIX
from headwaiter.serving.metrics.exporter import MetricsExporter, collect_metrics
from tests.service.serving.metrics.replica_kit import (
    PROCESSES,
    Replica,
    fetch,
    parse_samples,
    scrape,
    translate_count,
    value,
)


def subdirectories(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()]


def test_counters_survive_ended_and_killed_replicas(start: Callable[..., Replica], port: int) -> None:
    drained, killed, living = start(), start(), start()
    for replica, requests in ((drained, 3), (killed, 4), (living, 5)):
        for _ in range(requests):
            replica.do("record_request", "Translate", "OK", 0.02)
        replica.do("record_usage", 10, 20, 1)
        replica.do("record_stages", 1.0, 2.0, 30.0)
    before = scrape(port)

    drained.end()
    killed.kill()

    after = scrape(port)
    assert translate_count(before) == translate_count(after) == 12
    assert value(after, "request_duration_seconds_count", method="Translate") == 12
    assert value(after, "request_duration_seconds_sum", method="Translate") == pytest.approx(0.24)
    assert value(after, "request_duration_seconds_bucket", method="Translate", le="0.01") == 0
    assert value(after, "request_duration_seconds_bucket", method="Translate", le="0.025") == 12
    assert value(after, "request_stage_duration_seconds_sum", stage="run") == pytest.approx(0.09)
    assert value(after, "input_tokens_total") == 30
    assert value(after, "output_tokens_total") == 60
    assert value(after, "images_total") == 3


def test_remaining_replica_serves_metrics_of_all(start: Callable[..., Replica], port: int) -> None:
    replicas = [start() for _ in range(3)]
    for replica in replicas:
        replica.do("record_request", "Translate", "OK", 0.02)

    replicas[0].kill()
    assert translate_count(scrape(port)) == 3
    replicas[1].end()
    assert translate_count(scrape(port)) == 3
    replicas[2].kill()
    with pytest.raises(ConnectionError):
        fetch(port)

    start().do("record_request", "Translate", "OK", 0.02)
    assert translate_count(scrape(port)) == 4


def test_gauges_cover_running_replicas_only(start: Callable[..., Replica], port: int) -> None:
    drained, killed, living = start(), start(), start()
    for replica, slots, wait in ((drained, 1, 9.0), (killed, 10, 8.0), (living, 100, 1.0)):
        replica.do("set_ready", True)
        replica.do("observe_engine", {"slots_in_use": slots, "estimated_wait_seconds": wait})
        replica.do("describe", str(slots), "translation", "marian", "int8", "cpu")
    before = scrape(port)

    drained.end()
    killed.kill()

    after = scrape(port)
    assert (value(before, "slots_in_use"), value(after, "slots_in_use")) == (111, 100)
    assert (value(before, "estimated_wait_seconds"), value(after, "estimated_wait_seconds")) == (9, 1)
    assert (value(before, "replicas_ready"), value(after, "replicas_ready")) == (3, 1)
    versions = [dict(labels)["version"] for name, labels in after if name == PREFIX + "model_info"]
    assert versions == ["100"]


def test_model_metrics_closed_drops_gauges_and_keeps_counting(exporter: MetricsExporter, port: int) -> None:
    model, other = exporter.for_model("marian"), exporter.for_model("vit")
    for metrics in (model, other):
        metrics.set_ready(True)

    model.close()
    model.close()
    model.observe_engine({"waiting": 7, "steps": 2})
    model.record_request("Translate", "OK", 0.02)

    scraped = scrape(port)
    assert value(scraped, "replicas_ready") is value(scraped, "queue_depth") is None
    assert value(scraped, "replicas_ready", model="vit") == 1
    assert (translate_count(scraped), value(scraped, "engine_steps_total")) == (1, 2)


def test_reused_process_id_keeps_counts_separate(start: Callable[..., Replica], port: int) -> None:
    first = start(pid=7)
    first.do("record_request", "Translate", "OK", 0.02)
    first.do("observe_engine", {"waiting": 5, "steps": 40})
    first.kill()

    second = start(pid=7)
    second.do("observe_engine", {"steps": 2})

    scraped = scrape(port)
    assert translate_count(scraped) == 1
    assert value(scraped, "engine_steps_total") == 42
    assert value(scraped, "queue_depth") is None


def test_values_of_killed_replicas_are_merged(start: Callable[..., Replica], port: int, folder: Path) -> None:
    living = start()
    for generation in range(1, 6):
        replica = start()
        replica.do("record_request", "Translate", "OK", generation / 100)
        replica.do("record_request", "Translate", "INTERNAL", 1.0)
        replica.kill()
        scraped = scrape(port)
        assert (translate_count(scraped), translate_count(scraped, "INTERNAL")) == (generation, generation)
        assert value(scraped, "request_duration_seconds_count", method="Translate") == 2 * generation
        assert len(subdirectories(folder)) == 2
    assert value(scraped, "request_duration_seconds_sum", method="Translate") == pytest.approx(0.15 + 5)
    living.end()


def test_merge_during_concurrent_scrapes_counts_once(start: Callable[..., Replica], port: int) -> None:
    survivors = [start(), start()]
    stopped = threading.Event()

    def read() -> list[float]:
        counts = [0.0]
        while not stopped.is_set():
            with suppress(ConnectionError, HTTPException):  # the scrape was assigned to a killed replica
                counts.append(translate_count(scrape(port)) or 0)
        return counts

    def start_and_kill() -> None:
        replica = start()
        for _ in range(3):
            replica.do("record_request", "Translate", "OK", 0.02)
        replica.kill()

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            for _ in range(8):
                start_and_kill()
        finally:
            stopped.set()

    assert translate_count(scrape(port)) == 24
    for reader in readers:
        counts = reader.result(timeout=60)
        assert counts == sorted(counts)
        assert counts[-1] <= 24
    for survivor in survivors:
        survivor.end()


def _collect_until_killed(folder: Path, last: int) -> None:
    """Collect the metrics; the process kills itself at the `last`-th file system operation."""
    operations = count(1)
    watched = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}

    def watch(event: str, _: tuple[Any, ...]) -> None:
        if event in watched and next(operations) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    collect_metrics(folder)


def test_merge_killed_at_any_operation_keeps_counts(
    start: Callable[..., Replica], tmp_path: Path, folder: Path
) -> None:
    for requests in (1, 2, 3):
        replica = start()
        for _ in range(requests):
            replica.do("record_request", "Translate", "OK", 0.02)
        replica.kill()

    for operation in count(1):
        copy = shutil.copytree(folder, tmp_path / str(operation))
        process = PROCESSES.Process(target=_collect_until_killed, args=(copy, operation))
        process.start()
        process.join(60)
        merged = parse_samples(generate_latest(collect_metrics(copy)).decode())
        durations = value(merged, "request_duration_seconds_count", method="Translate")
        assert translate_count(merged) == durations == 6, operation
        assert len(subdirectories(copy)) == 1, operation
        if process.exitcode == 0:
            break
    assert operation > 15, "the merge has too few operations to be killed at"
