"""What is counted, and the page that shows it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from dataclasses import fields
from pathlib import Path

import prometheus_client
import pytest
from grpc import StatusCode
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from service.engine.meters import Meters
from service.ingress.methods import METHODS
from service.metrics import MetricsError, ModelMetrics, open_metrics
from service.metrics.page import Metrics
from service.metrics.table import COUNTED, COUNTED_PER_REQUEST, GAUGED, LATENCY, PREFIX, TABLE
from tests.service.metrics.kit import HOST, fetch, parsed, samples, translated, value

OPENMETRICS = "application/openmetrics-text"


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
