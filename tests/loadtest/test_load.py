"""Short load tests against one service: every scenario, and locust with and without its web page."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import pytest

from loadtest.service_process import SINGLE_PROCESS, ServiceProcess, free_ports, running_service
from tests.conftest import Packages
from tests.serving_kit import TASKS, one_model_per_task

pytestmark = pytest.mark.slow

SCENARIOS = ("ramp", "steady", "burst", "soak", "cancel-storm")
RATE = 16.0  # below the capacity, but high enough that every task is drawn over every transport
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    folder, models = tmp_path_factory.mktemp("service"), one_model_per_task(packages)
    with running_service(folder, models, options=SINGLE_PROCESS) as running:
        yield running


@pytest.fixture(scope="module")
def reports(service: ServiceProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all scenarios and return the directory of their results."""
    out = tmp_path_factory.mktemp("reports")
    options = ["--transports", "grpc,http", "--rate", str(RATE), "--max-rate", "30", "--seconds", "2", "--p95", "20000"]
    result = run("loadtest.scenarios", *SCENARIOS, *addresses(service), *options, "--out", str(out))
    assert result.returncode == 0, result.stdout + result.stderr
    return out


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)


def addresses(service: ServiceProcess) -> list[str]:
    return ["--grpc", service.grpc, "--http", service.http, "--metrics", service.metrics]


def report(reports: Path, scenario: str) -> Any:
    return json.loads((reports / f"{scenario}.json").read_text())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_counts_add_up(reports: Path, scenario: str) -> None:
    results = report(reports, scenario)
    totals = results["totals"]
    assert totals["sent"] == sum(totals[outcome] for outcome in ("answered", "rejected", "cancelled", "failed")) > 0
    assert totals["sent"] == sum(totals["codes"].values())
    assert totals["sent"] == sum(phase["call_counts"]["sent"] for phase in results["phases"])
    with (reports / f"{scenario}.csv").open() as file:
        seconds = list(csv.DictReader(file))
    for outcome in ("sent", "answered", "rejected", "cancelled", "failed"):
        assert sum(int(second[outcome]) for second in seconds) == totals[outcome]
    assert totals["failed"] == 0, results["errors"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_counts_match_service_metrics(reports: Path, scenario: str) -> None:
    results = report(reports, scenario)
    assert {comparison["model"] for comparison in results["count_comparison"]} == set(TASKS)
    assert [comparison for comparison in results["count_comparison"] if not comparison["agrees"]] == []
    assert (
        sum(sum(comparison["client_counts"].values()) for comparison in results["count_comparison"])
        == results["totals"]["sent"]
    )
    assert results["slots_in_use_after"] == 0


@pytest.mark.parametrize("scenario", ["ramp", "steady", "soak"])
def test_scenario_below_capacity_reports_no_locust_failures(reports: Path, scenario: str) -> None:
    results = report(reports, scenario)
    first_chunks = sum(method["first_chunk_ms"]["count"] for method in results["methods"])
    assert results["locust"]["failures"] == 0
    assert results["locust"]["requests"] == first_chunks + sum(
        sum(method["codes"].values()) for method in results["methods"]
    )


def test_scenarios_cover_every_task_and_transport(reports: Path) -> None:
    covered = {
        (entry["model"], entry["method"], entry["transport"])
        for scenario in SCENARIOS
        for entry in report(reports, scenario)["methods"]
    }
    both = {"translator": "Translate", "captioner": "Caption", "texts": "Classify", "pictures": "Classify"}
    both |= {"finder": "Detect", "writer": "Generate"}
    assert {(model, method, transport) for model, method in both.items() for transport in ("grpc", "http")} <= covered
    assert {("translator", "TranslateStream", transport) for transport in ("grpc", "http")} <= covered
    assert {("player", "Episode", "grpc"), ("player", "EpisodeStep", "grpc"), ("player", "Act", "http")} <= covered


def test_scenario_streams_report_first_chunk_before_end(reports: Path) -> None:
    streams = [stream for stream in report(reports, "burst")["methods"] if stream["first_chunk_ms"]["count"]]
    assert streams
    assert all(stream["method"].endswith("Stream") for stream in streams)
    assert all(stream["first_chunk_ms"]["p50"] <= stream["latency_ms"]["max"] for stream in streams)


def test_scenarios_apply_their_load_patterns(reports: Path) -> None:
    ramp, burst, storm = (report(reports, name) for name in ("ramp", "burst", "cancel-storm"))
    assert [phase["phase"]["rate"] for phase in ramp["phases"]] == [16, 24]
    objective = "p95 within 20000 ms and at most 1 % errors"
    assert ramp["verdict"] == {
        "holds": True,
        "rate": 24,
        "summary": f"The capacity was not reached: 24 requests/s met the objective: {objective}.",
    }
    before, during, after = (phase["call_counts"]["sent"] for phase in burst["phases"])
    assert during > 3 * max(before, after)
    assert storm["totals"]["cancelled"] > 0
    assert [phase["call_counts"]["cancelled"] > 0 for phase in storm["phases"]] == [False, True, False]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario_html_report_is_self_contained(reports: Path, scenario: str) -> None:
    page = (reports / f"{scenario}.html").read_text()
    assert page.count("<svg") == 4
    assert escape(report(reports, scenario)["verdict"]["summary"]) in page
    assert not any(word in page for word in ("<script", "<link", "src=", "<img"))


def test_locust_headless_closed_loop_has_no_failures(service: ServiceProcess, tmp_path: Path) -> None:
    options = ["--headless", "--users", "16", "--spawn-rate", "16", "--run-time", "4s", "--think", "0.4"]
    targets = ["--grpc", service.grpc, "--http", service.http, "--csv", str(tmp_path / "locust")]
    result = run("locust", "-f", "loadtest/locustfile.py", *options, *targets, "--only-summary")
    assert result.returncode == 0, result.stdout + result.stderr
    with (tmp_path / "locust_stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["Failure Count"] == "0"
    assert {"grpc", "http"} <= {row["Type"] for row in rows}


def test_locust_web_page_starts_open_loop_arrivals(service: ServiceProcess) -> None:
    port = free_ports("web")["web"]
    targets = ["--grpc", service.grpc, "--http", service.http, "--web-host", "127.0.0.1", "--web-port", str(port)]
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--arrivals", "20", *targets]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert b"Locust" in fetch(f"http://127.0.0.1:{port}/")
        fetch(f"http://127.0.0.1:{port}/swarm", {"user_count": "1", "spawn_rate": "1"})
        end = time.monotonic() + 30
        while (requests := request_count(port)) < 20:
            assert time.monotonic() < end, f"{requests} requests in 30 s"
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(20)


def request_count(port: int) -> int:
    statistics = json.loads(fetch(f"http://127.0.0.1:{port}/stats/requests"))
    assert statistics["fail_ratio"] == 0
    return sum(entry["num_requests"] for entry in statistics["stats"] if entry["name"] == "Aggregated")


def fetch(url: str, form: dict[str, str] | None = None) -> bytes:
    end = time.monotonic() + 60
    while True:
        try:
            content = urllib.parse.urlencode(form).encode() if form else None
            with urllib.request.urlopen(url, content, timeout=10) as page:
                return bytes(page.read())
        except urllib.error.URLError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


INVALID_ARGUMENTS = [
    (
        ["steady", "--rate", "5", "--grpc", "127.0.0.1:1"],
        "no service answers at 127.0.0.1:1 (UNAVAILABLE); start it with",
    ),
    (["steady", "--rate", "-5"], "argument --rate: '-5' is not a number greater than 0"),
]


@pytest.mark.parametrize(("arguments", "message"), INVALID_ARGUMENTS, ids=["no service", "negative rate"])
def test_scenarios_invalid_arguments_exit_with_message(arguments: list[str], message: str) -> None:
    result = run("loadtest.scenarios", *arguments)
    assert result.returncode in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_scenarios_unknown_model_or_capacity_exits_with_message(service: ServiceProcess, tmp_path: Path) -> None:
    def error_of(*arguments: str) -> str:
        result = run("loadtest.scenarios", *arguments, "--grpc", service.grpc, "--out", str(tmp_path))
        assert result.returncode == 1
        return result.stderr

    assert "does not serve unknown; it serves captioner, finder" in error_of("ramp", "--models", "unknown")
    assert "run `ramp` with the same objective first, or set --rate" in error_of("burst")
