"""Autoscaling and monitoring of a real service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headwaiter.client import Client, InvalidInput
from loadtest.service_process import ServiceProcess
from tests.deploy import prometheus_kit
from tests.deploy.conftest import TIMEOUT_SECONDS
from tests.deploy.prometheus_kit import run_prometheus
from tests.deploy.promql_kit import EXPRESSIONS, PANELS, RULE_EXPRESSIONS, metrics_in, substitute_variables

pytestmark = pytest.mark.slow


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.skipif(not prometheus_kit.IS_INSTALLED, reason="Debian's prometheus is not installed")
def test_prometheus_has_data_for_dashboard_and_alerts(service: ServiceProcess, client: Client, tmp_path: Path) -> None:
    with run_prometheus(tmp_path, service.metrics) as prometheus:
        with client.episode("player", target_return=1.0) as episode:
            episode.step([0.0] * client.describe("player").state_size)

            def empty_panels() -> set[str]:
                """Panels without data so far. Sends requests first: a rate needs two scrapes with traffic."""
                list(client.generate_stream("writer", "ab", max_new_tokens=8))
                with pytest.raises(InvalidInput):
                    client.generate("writer", [])
                return {
                    title
                    for title, query in PANELS.items()
                    if not prometheus.query(substitute_variables(query, seconds=10))
                }

            wait_until(lambda: empty_panels() <= {"Rejected requests: {{model}}"})  # no request was rejected
        used = set().union(*map(metrics_in, EXPRESSIONS.values()))
        assert used - RULE_EXPRESSIONS.keys() <= prometheus.names()  # recording rules have no data without errors
        rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []


def test_idle_model_scales_to_zero_and_starts_on_request(service: ServiceProcess, client: Client) -> None:
    wait_until(lambda: not service.replicas("idle"))
    assert client.classify("idle", text="ab").labels
    assert len(service.replicas("idle")) == 1
    assert client.classify("idle", text="ab").labels


def test_replicas_follow_load(service: ServiceProcess, client: Client) -> None:
    stopped = threading.Event()

    def send_requests() -> None:
        while not stopped.is_set():
            client.generate("writer", ["ab"] * 8, max_new_tokens=50)

    threads = [threading.Thread(target=send_requests) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(service.replicas("writer")) == 2)
    finally:
        stopped.set()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
    wait_until(lambda: len(service.replicas("writer")) == 1)
