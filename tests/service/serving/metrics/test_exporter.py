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

from headwaiter.api.methods import METHODS
from headwaiter.engine.counters import EngineCounters
from headwaiter.serving.metrics import MetricsError, ModelMetrics, open_metrics
from headwaiter.serving.metrics.definitions import (
    ENGINE_COUNTERS,
    ENGINE_GAUGES,
    LATENCY_BUCKETS,
    METRICS,
    PREFIX,
    REQUEST_COUNTERS,
)
from headwaiter.serving.metrics.exporter import MetricsExporter
from tests.service.serving.metrics.replica_kit import HOST, fetch, parse_samples, scrape, translate_count, value

OPENMETRICS = "application/openmetrics-text"


def test_model_metrics_from_many_threads_count_exactly(exporter: MetricsExporter, port: int) -> None:
    model = exporter.for_model("marian")

    def work() -> None:
        for _ in range(1000):
            model.record_request("Translate", "OK", 0.02)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    scraped = scrape(port)
    assert translate_count(scraped) == value(scraped, "request_duration_seconds_count", method="Translate") == 8000


def test_histogram_buckets_match_prometheus_client(exporter: MetricsExporter, port: int) -> None:
    amounts = (0.0, 0.001, 0.0010001, 0.3, 2.5, 59.9, 60.0, 61.0, 1e6)
    registry = CollectorRegistry()
    reference = Histogram(
        f"{PREFIX}request_duration_seconds", "", ("model", "method"), registry=registry, buckets=LATENCY_BUCKETS
    )
    model = exporter.for_model("marian")
    for amount in amounts:
        model.record_request("Detect", "OK", amount)
        reference.labels("marian", "Detect").observe(amount)

    expected = parse_samples(generate_latest(registry).decode())
    scraped = scrape(port)
    assert {key: scraped[key] for key in expected if not key[0].endswith("_created")} == {
        key: number for key, number in expected.items() if not key[0].endswith("_created")
    }


def test_observe_engine_records_increases_and_gauges(exporter: MetricsExporter, port: int) -> None:
    model = exporter.for_model("marian")
    counters = EngineCounters(
        steps=10, slot_steps=80, elements=200, padding_elements=50, waiting=3, slots=64, decode_seconds=0.5
    )
    model.observe_engine(counters.snapshot())
    counters.steps, counters.waiting = 15, 1
    model.observe_engine(counters.snapshot())
    model.observe_engine(EngineCounters(steps=4, slots=64).snapshot())

    scraped = scrape(port)
    assert value(scraped, "engine_steps_total") == 19
    assert value(scraped, "engine_slot_steps_total") == 80
    assert (value(scraped, "batch_elements_total"), value(scraped, "batch_padding_elements_total")) == (200, 50)
    assert value(scraped, "engine_decode_seconds_total") == 0.5
    assert (value(scraped, "queue_depth"), value(scraped, "slots")) == (0, 64)
    assert value(scraped, "input_tokens_total") == 0, "token counters are recorded per request"


def test_definitions_cover_every_engine_counter() -> None:
    known = ENGINE_COUNTERS.keys() | ENGINE_GAUGES.keys() | REQUEST_COUNTERS
    assert {field.name for field in fields(EngineCounters)} <= known


def test_observe_engine_unknown_name_raises(exporter: MetricsExporter) -> None:
    with pytest.raises(ValueError, match=r"beans .*headwaiter/serving/metrics/definitions\.py"):
        exporter.for_model("marian").observe_engine({"beans": 1})


def test_labels_with_unknown_values_stay_bounded(exporter: MetricsExporter, port: int) -> None:
    model = exporter.for_model("marian")
    for number in range(1000):
        model.record_request(f"Method{number}", f"CODE_{number}", 0.02)
        model.record_time_to_first_token(f"Method{number}", 0.02)
        model.record_inter_token_latency(f"Method{number}", 0.02)
    for method in METHODS:
        for code in StatusCode:
            model.record_request(method, code.name, 0.02)

    scraped = scrape(port)
    seen = {label: {dict(labels).get(label) for _, labels in scraped} - {None} for label in ("method", "code")}
    assert seen["method"] == {*METHODS, "other"}
    assert seen["code"] == {code.name for code in StatusCode}
    assert value(scraped, "requests_total", method="other", code="UNKNOWN") == 1000
    assert value(scraped, "inter_token_latency_seconds_count", method="other") == 1000


def test_definitions_have_unique_names_and_help_texts() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert all(metric.help.endswith(".") for metric in METRICS)
    assert not [metric.name for metric in METRICS if "seconds" in metric.name and not metric.name.endswith("_seconds")]


def write_all_metrics(exporter: MetricsExporter, model: str = "marian") -> ModelMetrics:
    """Record at least one value of every metric."""
    metrics = exporter.for_model(model)
    metrics.record_request("Translate", "OK", 0.02)
    metrics.record_time_to_first_token("TranslateStream", 0.02)
    metrics.record_inter_token_latency("TranslateStream", 0.002)
    metrics.describe("1", "translation", "marian", "int8", "cpu")
    metrics.observe_engine(dict.fromkeys([*ENGINE_COUNTERS, *ENGINE_GAUGES], 1.0))
    metrics.set_desired_replicas(1)
    return metrics


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("*/*", "text/plain; version=0.0.4"),
        (f"{OPENMETRICS};version=1.0.0,text/plain;q=0.5", f"{OPENMETRICS}; version=1.0.0"),
    ],
)
def test_exporter_serves_all_metrics_in_negotiated_format(
    exporter: MetricsExporter, port: int, accept: str, content_type: str
) -> None:
    metrics = write_all_metrics(exporter, 'odd "name"\\ 模型')

    status, headers, body = fetch(port, accept=accept)

    assert status == 200
    assert headers["Content-Type"].startswith(content_type)
    families = list((parse_openmetrics if OPENMETRICS in accept else text_string_to_metric_families)(body))
    assert {family.name for family in families} == {PREFIX + metric.name for metric in METRICS}
    assert {family.name: family.documentation for family in families} == {PREFIX + m.name: m.help for m in METRICS}
    assert {sample.labels["model"] for family in families for sample in family.samples} == {'odd "name"\\ 模型'}
    metrics.close()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_exporter_output_passes_promtool(exporter: MetricsExporter, port: int) -> None:
    metrics = write_all_metrics(exporter)
    _, _, body = fetch(port)

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=body, text=True, capture_output=True, check=False, timeout=60
    )

    assert (checked.returncode, checked.stderr) == (0, "")
    metrics.close()


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "/favicon.ico", "/../metrics"])
def test_exporter_unknown_path_returns_404(exporter: MetricsExporter, path: str) -> None:
    status, headers, body = fetch(exporter.port, path)

    assert (status, body.count("\n")) == (404, 1)
    assert "/metrics" in body
    assert headers["Content-Type"] == "text/plain; charset=utf-8"


def test_exporter_rejects_post_and_ignores_query(exporter: MetricsExporter) -> None:
    assert fetch(exporter.port, method="POST")[0] == 501
    assert fetch(exporter.port, "/metrics?name=x")[0] == 200


def test_exporter_unreadable_folder_returns_500_and_recovers(exporter: MetricsExporter, folder: Path) -> None:
    metrics = exporter.for_model("marian")
    away = folder.rename(folder.with_name("away"))
    status, _, body = fetch(exporter.port)
    assert (status, body.count("\n")) == (500, 1)

    away.rename(folder)
    assert fetch(exporter.port)[0] == 200
    metrics.close()


def test_open_metrics_port_in_use_raises(folder: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MetricsError, match=rf"{HOST}:{port} .Address already in use.; choose another metrics.port"):
            open_metrics(folder, port, host=HOST)


def test_exporter_leaves_other_registries_alone(exporter: MetricsExporter, port: int) -> None:
    """Ray imports prometheus_client first and may have metrics of its own."""
    registry = CollectorRegistry()
    prometheus_client.Counter("foreign", "Metric of another library.", registry=registry).inc()
    metrics = exporter.for_model("marian")

    assert b"foreign_total 1.0" in generate_latest(registry)
    assert "foreign" not in fetch(port)[2]
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ
    metrics.close()
