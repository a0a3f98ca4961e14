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

        def wait_for(when: str, *, workers: int) -> None:
            """As many replicas answer, each on a worker of its own."""
            since = time.time()
            seconds = wait_until(lambda: cluster.nodes() == 1 + workers, f"there are {workers} workers")
            told["nodes"].append([f"{when}: number of workers {workers}", f"{seconds:.1f} s"])
            wait_until(lambda: cluster.at_work("writer", since) == workers, f"{workers} replicas answer")
            told["nodes"].append([f"{when}: number of replicas that answer {workers}", f"{time.time() - since:.1f} s"])

        with load(cluster, *[much] * 4) as busy:
            wait_for("load begins", workers=2)
        with load(cluster, little) as quiet:
            wait_for("load ends (`shrink_s: 4`)", workers=1)
        assert busy.failed + quiet.failed == []
        assert len(cluster.replicas("writer")) == 1
