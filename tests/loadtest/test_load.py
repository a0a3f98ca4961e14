"""Load tests as their users run them, short: locust with and without its page, and every scenario, on one service."""

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

from loadtest.served import Service, free_ports, serving
from tests.conftest import Packages
from tests.serving_kit import TASKS, one_of_each

pytestmark = pytest.mark.slow

SCENARIOS = ("ramp", "steady", "burst", "soak", "cancel-storm")
RATE = 16.0  # low enough to be carried, high enough that each way of each task is drawn
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service"), one_of_each(packages)) as running:
        yield running


@pytest.fixture(scope="module")
def reports(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scenarios, one after another."""
    out = tmp_path_factory.mktemp("reports")
    told = ["--ways", "grpc,http", "--rate", str(RATE), "--most", "30", "--seconds", "2", "--p95", "20000"]
    done = run("loadtest.scenarios", *SCENARIOS, *addresses(service), *told, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=240)


def addresses(service: Service) -> list[str]:
    return ["--grpc", service.grpc, "--http", service.http, "--metrics", service.metrics]


def report(reports: Path, scenario: str) -> Any:
    return json.loads((reports / f"{scenario}.json").read_text())


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_numbers_of_a_scenario_add_up(reports: Path, scenario: str) -> None:
    found = report(reports, scenario)
    totals = found["totals"]
    assert totals["sent"] == sum(totals[how] for how in ("answered", "refused", "left", "failed")) > 0
    assert totals["sent"] == sum(totals["codes"].values())
    assert totals["sent"] == sum(phase["tally"]["sent"] for phase in found["phases"])
    with (reports / f"{scenario}.csv").open() as file:
        seconds = list(csv.DictReader(file))
    for how in ("sent", "answered", "refused", "left", "failed"):
        assert sum(int(second[how]) for second in seconds) == totals[how]
    assert totals["failed"] == 0, found["errors"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_service_counted_what_its_callers_counted(reports: Path, scenario: str) -> None:
    found = report(reports, scenario)
    assert {each["model"] for each in found["service_counted"]} == set(TASKS)
    assert [each for each in found["service_counted"] if not each["agrees"]] == []
    assert sum(sum(each["called"].values()) for each in found["service_counted"]) == found["totals"]["sent"]
    assert found["rows_in_use_afterwards"] == 0


@pytest.mark.parametrize("scenario", ["ramp", "steady", "soak"])
def test_locust_saw_no_failure_at_a_modest_rate(reports: Path, scenario: str) -> None:
    found = report(reports, scenario)
    firsts = sum(each["first_piece_ms"]["count"] for each in found["methods"])
    assert found["locust"]["failures"] == 0
    assert found["locust"]["requests"] == firsts + sum(sum(each["codes"].values()) for each in found["methods"])


def test_every_task_was_asked_over_every_way(reports: Path) -> None:
    asked = {
        (each["model"], each["method"], each["way"])
        for scenario in SCENARIOS
        for each in report(reports, scenario)["methods"]
    }
    both = {"translator": "Translate", "captioner": "Caption", "texts": "Classify", "pictures": "Classify"}
    both |= {"finder": "Detect", "writer": "Generate"}
    assert {(model, method, way) for model, method in both.items() for way in ("grpc", "http")} <= asked
    assert {("translator", "TranslateStream", way) for way in ("grpc", "http")} <= asked
    assert {("player", "Episode", "grpc"), ("player", "EpisodeStep", "grpc"), ("player", "Act", "http")} <= asked


def test_streams_have_a_first_piece_before_their_end(reports: Path) -> None:
    streams = [each for each in report(reports, "burst")["methods"] if each["first_piece_ms"]["count"]]
    assert streams
    assert all(each["method"].endswith("Stream") for each in streams)
    assert all(each["first_piece_ms"]["p50"] <= each["latency_ms"]["longest"] for each in streams)


def test_scenarios_did_what_they_are_for(reports: Path) -> None:
    ramp, burst, storm = (report(reports, name) for name in ("ramp", "burst", "cancel-storm"))
    assert [phase["phase"]["rate"] for phase in ramp["phases"]] == [16, 24]
    assert ramp["verdict"] == {
        "holds": True,
        "rate": 24,
        "sentence": "The knee was not reached: 24 calls a second still had p95 within 20000 ms and at most 1 % errors.",
    }
    before, during, after = (phase["tally"]["sent"] for phase in burst["phases"])
    assert during > 3 * max(before, after)
    assert storm["totals"]["left"] > 0
    assert [phase["tally"]["left"] > 0 for phase in storm["phases"]] == [False, True, False]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_report_stands_by_itself(reports: Path, scenario: str) -> None:
    page = (reports / f"{scenario}.html").read_text()
    assert page.count("<svg") == 4
    assert escape(report(reports, scenario)["verdict"]["sentence"]) in page
    assert not any(word in page for word in ("<script", "<link", "src=", "<img"))


def test_locust_by_itself(service: Service, tmp_path: Path) -> None:
    """Guests who think, of every task, over both ways; locust ends with 1 where anything failed."""
    told = ["--headless", "--users", "16", "--spawn-rate", "16", "--run-time", "4s", "--think", "0.4"]
    where = ["--grpc", service.grpc, "--http", service.http, "--csv", str(tmp_path / "locust")]
    done = run("locust", "-f", "loadtest/locustfile.py", *told, *where, "--only-summary")
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "locust_stats.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[-1]["Failure Count"] == "0"
    assert {"grpc", "http"} <= {row["Type"] for row in rows}


def test_locusts_page_starts_guests_that_arrive(service: Service) -> None:
    port = free_ports("web")["web"]
    where = ["--grpc", service.grpc, "--http", service.http, "--web-host", "127.0.0.1", "--web-port", str(port)]
    command = [sys.executable, "-m", "locust", "-f", "loadtest/locustfile.py", "--arrivals", "20", *where]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert b"Locust" in fetch(f"http://127.0.0.1:{port}/")
        fetch(f"http://127.0.0.1:{port}/swarm", {"user_count": "1", "spawn_rate": "1"})
        end = time.monotonic() + 30
        while (requests := asked(port)) < 20:
            assert time.monotonic() < end, f"{requests} requests in 30 s"
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(20)


def asked(port: int) -> int:
    page = json.loads(fetch(f"http://127.0.0.1:{port}/stats/requests"))
    assert page["fail_ratio"] == 0
    return sum(each["num_requests"] for each in page["stats"] if each["name"] == "Aggregated")


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


MISTAKES = [
    (["steady", "--rate", "5", "--grpc", "127.0.0.1:1"], "nothing answers at 127.0.0.1:1 (UNAVAILABLE); start it with"),
    (["steady", "--rate", "-5"], "argument --rate: '-5' is not a number above 0"),
]


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES, ids=[sentence for _, sentence in MISTAKES])
def test_mistakes_are_told_in_a_sentence(arguments: list[str], sentence: str) -> None:
    done = run("loadtest.scenarios", *arguments)
    assert done.returncode in (1, 2)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_mistakes_about_a_service_that_runs(service: Service, tmp_path: Path) -> None:
    def said(*arguments: str) -> str:
        done = run("loadtest.scenarios", *arguments, "--grpc", service.grpc, "--out", str(tmp_path))
        assert done.returncode == 1
        return done.stderr

    assert "serves no nobody; it has captioner, finder" in said("ramp", "--models", "nobody")
    assert "burst goes by what the service carries: run `ramp`" in said("burst")
