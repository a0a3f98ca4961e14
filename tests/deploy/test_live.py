"""Scaling and watching, on a real Ray Serve with real engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtest.served import Service
from service.client import Client, InvalidInput
from tests.deploy import prometheus_kit
from tests.deploy.conftest import UNTIL_SECONDS
from tests.deploy.prometheus_kit import scraping
from tests.deploy.promql_kit import EXPRESSIONS, PANELS, RULE_EXPRESSIONS, filled_in, metrics_in

pytestmark = pytest.mark.slow


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNTIL_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.skipif(not prometheus_kit.THERE, reason="Debian's prometheus is not installed")
def test_prometheus_finds_everything_that_dashboard_and_alerts_ask_for(
    service: Service, client: Client, tmp_path: Path
) -> None:
    with scraping(tmp_path, service.metrics) as prometheus:
        with client.episode("player", target_return=1.0) as episode:
            episode.step([0.0] * client.describe("player").state_size)

            def empty() -> set[str]:
                """Panels that show nothing yet. What the traffic of a moment leaves takes two scrapes to be a rate."""
                list(client.generate_stream("writer", "ab", max_new_tokens=8))
                with pytest.raises(InvalidInput):
                    client.generate("writer", [])
                return {title for title, curve in PANELS.items() if not prometheus.query(filled_in(curve, seconds=10))}

            until(lambda: empty() <= {"Refused: {{model}}"})  # nothing was refused
        asked = set().union(*map(metrics_in, EXPRESSIONS.values()))
        assert asked - RULE_EXPRESSIONS.keys() <= prometheus.names()  # without errors, their share is not recorded
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_an_idle_model_sleeps_and_the_next_call_wakes_it(service: Service, client: Client) -> None:
    until(lambda: not service.replicas("sleeper"))
    assert client.classify("sleeper", text="ab").labels
    assert len(service.replicas("sleeper")) == 1
    assert client.classify("sleeper", text="ab").labels


def test_replicas_come_with_the_load_and_go_with_it(service: Service, client: Client) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            client.generate("writer", ["ab"] * 8, max_new_tokens=50)

    writers = [threading.Thread(target=write) for _ in range(4)]
    for each in writers:
        each.start()
    try:
        until(lambda: len(service.replicas("writer")) == 2)
    finally:
        stop.set()
        for each in writers:
            each.join()
    until(lambda: len(service.replicas("writer")) == 1)
