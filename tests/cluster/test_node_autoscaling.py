"""Ray's autoscaler adds nodes for replicas that cannot be scheduled, and removes them again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headwaiter.client import Client
from loadtest.cluster.ray_cluster import elastic_cluster, wait_until
from tests.cluster.conftest import ResultRows
from tests.cluster.load_kit import continuous_load
from tests.conftest import Packages

pytestmark = [pytest.mark.slowest, pytest.mark.cluster, pytest.mark.timeout(1200)]

MODEL: dict[str, Any] = {
    "max_sequences": 4,
    "resources": {"cpus": 2},  # all CPUs of a worker
    "autoscale": {"min": 1, "max": 2, "target": 0.5, "scale_down_delay_s": 4},
    "limits": {"max_queue_wait_ms": 60_000},
}


def heavy_call(client: Client, request_id: str) -> str:
    client.generate("writer", ["ab"] * 8, max_new_tokens=50, request_id=request_id)
    return "heavy"


def light_call(client: Client, request_id: str) -> str:
    client.generate("writer", "ab", max_new_tokens=2, request_id=request_id)
    return "light"


def test_nodes_follow_load(packages: Packages, tmp_path: Path, result_rows: ResultRows) -> None:
    """No request fails while a node that is no longer needed is removed."""
    with elastic_cluster(tmp_path) as cluster:
        assert cluster.nodes() == 1
        cluster.deploy({"writer": {"path": str(packages("gpt2", "fp32").package.folder), **MODEL}})
        assert cluster.nodes() == 2

        def wait_for(event: str, *, workers: int) -> None:
            """Wait for this number of workers with one answering replica each."""
            since = time.time()
            seconds = wait_until(lambda: cluster.nodes() == 1 + workers, f"the cluster has {workers} workers")
            result_rows["nodes"].append([f"{event}: number of workers {workers}", f"{seconds:.1f} s"])
            wait_until(lambda: cluster.active_replicas("writer", since) == workers, f"{workers} replicas answer")
            result_rows["nodes"].append(
                [f"{event}: number of replicas that answer {workers}", f"{time.time() - since:.1f} s"]
            )

        with continuous_load(cluster, *[heavy_call] * 4) as heavy_log:
            wait_for("load begins", workers=2)
        with continuous_load(cluster, light_call) as light_log:
            wait_for("load ends (`scale_down_delay_s: 4`)", workers=1)
        assert heavy_log.failed + light_log.failed == []
        assert len(cluster.replicas("writer")) == 1
