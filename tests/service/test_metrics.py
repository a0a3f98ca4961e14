from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import fields
from email.message import Message
from http.client import HTTPConnection, HTTPException
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from grpc import StatusCode
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from service.engine.meters import Meters
from service.ingress.methods import METHODS
from service.metrics import MetricsError, ModelMetrics, open_metrics
from service.metrics.page import Metrics, read_page
from service.metrics.table import COUNTED, COUNTED_PER_REQUEST, GAUGED, LATENCY, PREFIX, TABLE

HOST = "127.0.0.1"
OPENMETRICS = "application/openmetrics-text"
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([__name__])
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def _replica(folder: Path, port: int, orders: Connection, pid: int | None) -> None:
    """Does what it is told, until it is told nothing or killed."""
    if pid is not None:
        os.getpid = lambda: pid
    metrics = open_metrics(folder, port, host=HOST)
    model = metrics.of("marian")
    orders.send("ready")
    while order := orders.recv():
        name, *arguments = order
        getattr(model, name)(*arguments)
        orders.send("done")
    model.close()
    metrics.close()


class Replica:
    def __init__(self, folder: Path, port: int, pid: int | None = None) -> None:
        self._orders, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_replica, args=(folder, port, theirs, pid))
        self.process.start()
        theirs.close()
        self._expect("ready")

    def do(self, *order: Any) -> None:
        self._orders.send(order)
        self._expect("done")

    def end(self) -> None:
        self._orders.send(())
        self.process.join(60)
        assert self.process.exitcode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.join(60)

    def _expect(self, word: str) -> None:
        assert self._orders.poll(60), "the replica does not answer"
        assert self._orders.recv() == word


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "metrics"


@pytest.fixture
def port() -> Iterator[int]:
    """Kept for the test by a socket that shares it and does not listen."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind((HOST, 0))
        yield kept.getsockname()[1]


@pytest.fixture
def start(folder: Path, port: int) -> Iterator[Callable[..., Replica]]:
    started: list[Replica] = []

    def starting(pid: int | None = None) -> Replica:
        started.append(Replica(folder, port, pid))
        return started[-1]

    yield starting
    for each in started:
        each.kill()


@pytest.fixture
def metrics(folder: Path, port: int) -> Iterator[Metrics]:
    metrics = open_metrics(folder, port, host=HOST)
    yield metrics
    metrics.close()


def fetch(port: int, path: str = "/metrics", *, verb: str = "GET", accept: str = "") -> tuple[int, Message, str]:
    connection = HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(verb, path, headers={"Accept": accept} if accept else {})
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def parsed(page: str) -> Samples:
    families = text_string_to_metric_families(page)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def samples(port: int) -> Samples:
    status, _, page = fetch(port)
    assert status == 200
    return parsed(page)


def value(found: Samples, name: str, model: str = "marian", **labels: str) -> float | None:
    return found.get((PREFIX + name, frozenset((labels | {"model": model}).items())))


def translated(found: Samples, code: str = "OK") -> float | None:
    return value(found, "requests_total", method="Translate", code=code)


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


def test_many_threads_count_exactly(metrics: Metrics, port: int) -> None:
    model = metrics.of("marian")

    def work() -> None:
        for _ in range(1000):
            model.finished("Translate", "OK", 0.02)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    found = samples(port)
    assert translated(found) == value(found, "request_seconds_count", method="Translate") == 8000


def test_buckets_are_those_of_prometheus(metrics: Metrics, port: int) -> None:
    amounts = (0.0, 0.001, 0.0010001, 0.3, 2.5, 59.9, 60.0, 61.0, 1e6)
    registry = CollectorRegistry()
    reference = Histogram(f"{PREFIX}request_seconds", "", ("model", "method"), registry=registry, buckets=LATENCY)
    model = metrics.of("marian")
    for amount in amounts:
        model.finished("Detect", "OK", amount)
        reference.labels("marian", "Detect").observe(amount)

    expected = parsed(generate_latest(registry).decode())
    found = samples(port)
    assert {key: found[key] for key in expected if not key[0].endswith("_created")} == {
        key: number for key, number in expected.items() if not key[0].endswith("_created")
    }


def test_the_engines_numbers_become_increases_and_gauges(metrics: Metrics, port: int) -> None:
    model = metrics.of("marian")
    meters = Meters(steps=10, row_steps=80, places=200, padding=50, waiting=3, rows=64, decode_seconds=0.5)
    model.observe_engine(meters.snapshot())
    meters.steps, meters.waiting = 15, 1
    model.observe_engine(meters.snapshot())
    model.observe_engine(Meters(steps=4, rows=64).snapshot())

    found = samples(port)
    assert value(found, "steps_total") == 19
    assert value(found, "row_steps_total") == 80
    assert (value(found, "places_total"), value(found, "padding_places_total")) == (200, 50)
    assert value(found, "engine_decode_seconds_total") == 0.5
    assert (value(found, "queue_waiting"), value(found, "rows")) == (0, 64)
    assert value(found, "input_tokens_total") == 0, "those are counted per request"


def test_every_meter_of_the_engine_has_its_metric() -> None:
    known = COUNTED.keys() | GAUGED.keys() | COUNTED_PER_REQUEST
    assert {each.name for each in fields(Meters)} <= known


def test_a_number_that_is_no_metric_is_refused(metrics: Metrics) -> None:
    with pytest.raises(ValueError, match=r"beans is no metric; service/metrics/table\.py has"):
        metrics.of("marian").observe_engine({"beans": 1})


def test_labels_stay_bounded_whatever_is_called(metrics: Metrics, port: int) -> None:
    model = metrics.of("marian")
    for number in range(1000):
        model.finished(f"Method{number}", f"CODE_{number}", 0.02)
        model.first_token(f"Method{number}", 0.02)
        model.between_tokens(f"Method{number}", 0.02)
    for method in METHODS:
        for code in StatusCode:
            model.finished(method, code.name, 0.02)

    found = samples(port)
    seen = {label: {dict(labels).get(label) for _, labels in found} - {None} for label in ("method", "code")}
    assert seen["method"] == {*METHODS, "other"}
    assert seen["code"] == {code.name for code in StatusCode}
    assert value(found, "requests_total", method="other", code="UNKNOWN") == 1000
    assert value(found, "between_tokens_seconds_count", method="other") == 1000


def test_names_are_unique_and_explained() -> None:
    names = [metric.name for metric in TABLE]
    assert len(set(names)) == len(names)
    assert all(metric.help.endswith(".") for metric in TABLE)
    assert not [metric.name for metric in TABLE if "seconds" in metric.name and not metric.name.endswith("_seconds")]


def everything(metrics: Metrics, model: str = "marian") -> ModelMetrics:
    """Tells of all that there is."""
    told = metrics.of(model)
    told.finished("Translate", "OK", 0.02)
    told.first_token("TranslateStream", 0.02)
    told.between_tokens("TranslateStream", 0.002)
    told.describe("1", "translation", "marian", "int8", "cpu")
    told.observe_engine(dict.fromkeys([*COUNTED, *GAUGED], 1.0))
    told.wanted(1)
    return told


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        (f"{OPENMETRICS};version=1.0.0,text/plain;q=0.5", f"{OPENMETRICS}; version=1.0.0"),
    ],
)
def test_the_page_has_all_metrics_in_the_format_asked_for(
    metrics: Metrics, port: int, accept: str, content_type: str
) -> None:
    told = everything(metrics, 'odd "name"\\ 模型')

    status, headers, page = fetch(port, accept=accept)

    assert status == 200
    assert headers["Content-Type"].startswith(content_type)
    families = list((parse_openmetrics if OPENMETRICS in accept else text_string_to_metric_families)(page))
    assert {family.name for family in families} == {PREFIX + metric.name for metric in TABLE}
    assert {family.name: family.documentation for family in families} == {PREFIX + m.name: m.help for m in TABLE}
    assert {sample.labels["model"] for family in families for sample in family.samples} == {'odd "name"\\ 模型'}
    told.close()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_no_fault(metrics: Metrics, port: int) -> None:
    told = everything(metrics)
    _, _, page = fetch(port)

    checked = subprocess.run(["promtool", "check", "metrics"], input=page, text=True, capture_output=True, check=False)

    assert (checked.returncode, checked.stderr) == (0, "")
    told.close()


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "/favicon.ico", "/../metrics"])
def test_there_is_nothing_else(metrics: Metrics, path: str) -> None:
    status, headers, body = fetch(metrics.port, path)

    assert (status, body) == (404, "There is nothing here; the metrics are at /metrics.\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_the_page_is_only_read(metrics: Metrics) -> None:
    assert fetch(metrics.port, verb="POST")[0] == 501
    assert fetch(metrics.port, "/metrics?name=x")[0] == 200


def test_a_page_that_cannot_be_read_is_told_and_the_next_one_is_served(metrics: Metrics, folder: Path) -> None:
    told = metrics.of("marian")
    away = folder.rename(folder.with_name("away"))
    status, _, body = fetch(metrics.port)
    assert (status, body.count("\n")) == (500, 1)

    away.rename(folder)
    assert fetch(metrics.port)[0] == 200
    told.close()


def test_a_port_of_another_program_is_told(folder: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        taken = other.getsockname()[1]
        with pytest.raises(
            MetricsError, match=rf"{HOST}:{taken} .Address already in use.; choose another metrics.port"
        ):
            open_metrics(folder, taken, host=HOST)


def test_others_metrics_in_the_process_are_left_alone(metrics: Metrics, port: int) -> None:
    """Ray imports prometheus_client before us, and may keep numbers of its own."""
    registry = CollectorRegistry()
    prometheus_client.Counter("foreign", "Not ours.", registry=registry).inc()
    told = metrics.of("marian")

    assert b"foreign_total 1.0" in generate_latest(registry)
    assert "foreign" not in fetch(port)[2]
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    told.close()
