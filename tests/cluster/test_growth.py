"""Ray's autoscaler rents machines when replicas find no room, and gives them back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from loadtest.cluster import elastic_cluster, wait_until
from service.client import Client
from tests.cluster.conftest import Told
from tests.cluster.load_kit import load
from tests.conftest import Packages

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

MODEL: dict[str, Any] = {
    "rows": 4,
    "resources": {"cpus": 2},  # all that a worker has
    "autoscale": {"min": 1, "max": 2, "target": 0.5, "shrink_s": 4},
    "limits": {"wait_ms": 60_000},
}


def much(client: Client, request_id: str) -> str:
    client.generate("writer", ["ab"] * 8, max_new_tokens=50, request_id=request_id)
    return "much"


def little(client: Client, request_id: str) -> str:
    client.generate("writer", "ab", max_new_tokens=2, request_id=request_id)
    return "little"


def test_nodes_come_with_the_load_and_go_with_it(packages: Packages, tmp_path: Path, told: Told) -> None:
    """While the machine is given back that is not needed any more, those who still call notice nothing."""
    with elastic_cluster(tmp_path) as cluster:
        assert cluster.nodes() == 1
        cluster.deploy({"writer": {"path": str(packages("gpt2", "fp32").package.folder), **MODEL}})
        assert cluster.nodes() == 2
        rows = told["nodes"]

        def wait_for(what: str, nodes: int, replicas: int) -> None:
            since = time.time()
            seconds = wait_until(lambda: cluster.nodes() == nodes, f"there are {nodes} nodes")
            rows.append([f"{what}: there are {nodes - 1} workers", f"{seconds:.1f} s"])
            wait_until(lambda: cluster.at_work("writer", since) == replicas, f"{replicas} replicas answer")
            rows.append([f"{what}: {replicas} replicas answer", f"{time.time() - since:.1f} s"])

        with load(cluster, *[much] * 4) as busy:
            wait_for("load begins", nodes=3, replicas=2)
        with load(cluster, little) as quiet:
            wait_for("load ends (`shrink_s: 4`)", nodes=2, replicas=1)
        assert busy.failed + quiet.failed == []
        assert len(cluster.replicas("writer")) == 1
