"""A Ray cluster of three network namespaces, shared by the tests of the package."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headwaiter import open_model
from headwaiter.client import Client
from headwaiter_export.pipeline import ExportRequest, export
from loadtest import deployment_results
from loadtest.cluster import network_namespaces as namespaces
from loadtest.cluster.ray_cluster import Cluster, cluster, wait_until
from tests.cluster.load_kit import CallFunction
from tests.conftest import Packages

ResultRows = dict[str, list[list[str]]]
REPLICAS = 2
TARGET_RETURN = 40.0
EPISODE = "episode"
"""Logged result of an episode; the result of a classification is the model version."""
_MAX_ATTEMPTS = 10
_MODEL_SETTINGS = {"replicas": REPLICAS, "resources": {"cpus": 0.5}}


@dataclass
class ClusterUnderTest:
    """The cluster, its models, and the requests of the load."""

    cluster: Cluster
    models: dict[str, Any]
    states: list[list[float]]
    actions: list[list[float]]

    def wait_for_nodes(self) -> None:
        wait_until(lambda: self.cluster.nodes() == 1 + len(self.cluster.workers), "all nodes have joined")

    def wait_for_replicas(self) -> None:
        wait_until(
            lambda: all(len(self.cluster.replicas(name)) == REPLICAS for name in self.models),
            "all models have their replicas",
        )

    def classify(self, client: Client, request_id: str) -> str:
        """Classify a text and return the version of the model."""
        return client.classify("texts", text="ab cd", request_id=request_id).model.version

    def play(self, client: Client, request_id: str) -> str:
        """Run an episode and check its actions, which must not depend on the replica."""
        with client.episode("player", target_return=TARGET_RETURN, request_id=request_id) as episode:
            for step, (state, expected) in enumerate(zip(self.states, self.actions, strict=True)):
                action = episode.step(state, 0.5 * step if step else None)
                assert action.continuous == pytest.approx(expected, abs=1e-4)
        return EPISODE

    @property
    def call_functions(self) -> list[CallFunction]:
        return [self.classify, self.classify, self.classify, self.play]


@pytest.fixture(scope="package", autouse=True)
def _require_namespaces() -> None:
    if reason := namespaces.unsupported_reason():
        pytest.skip(reason)


@pytest.fixture(scope="package")
def cluster_under_test(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    families = {"texts": "bert", "player": "decision_transformer"}
    models = {
        name: {"path": str(packages(family, "fp32").package.folder), **_MODEL_SETTINGS}
        for name, family in families.items()
    }
    states, actions = _episode(Path(str(models["player"]["path"])))
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.deploy(models)
        yield ClusterUnderTest(running, models, states, actions)


def _episode(package: Path) -> tuple[list[list[float]], list[list[float]]]:
    """States of an episode, and the actions of the model when run in process."""
    with open_model(package, threads=1) as model:
        size = model.task.policy.state_size
        states = [[0.1 * step - 0.05 * index for index in range(size)] for step in range(8)]
        with model.episode(TARGET_RETURN) as episode:
            actions = [episode.step(state, 0.5 * step if step else None) for step, state in enumerate(states)]
    return states, [list(action.continuous) for action in actions]


@pytest.fixture
def healthy_cluster(cluster_under_test: ClusterUnderTest) -> ClusterUnderTest:
    """The cluster with all workers connected and all replicas running."""
    for worker in cluster_under_test.cluster.workers:
        worker.connect()
        if not worker.is_running:
            cluster_under_test.cluster.start_worker(worker)
    cluster_under_test.wait_for_nodes()
    cluster_under_test.wait_for_replicas()
    return cluster_under_test


@pytest.fixture
def spread_cluster(healthy_cluster: ClusterUnderTest) -> ClusterUnderTest:
    """A healthy cluster in which every worker has a replica of each model, so that one worker can be lost."""
    for name in healthy_cluster.models:
        for _ in range(_MAX_ATTEMPTS):
            if healthy_cluster.cluster.runs_on_every_worker([name]):
                break
            healthy_cluster.cluster.replicas(name)[0].kill()  # Serve may place the new one on another worker
            healthy_cluster.wait_for_replicas()
    assert healthy_cluster.cluster.runs_on_every_worker(healthy_cluster.models), (
        "Serve places all replicas of a model on one worker"
    )
    return healthy_cluster


@pytest.fixture(scope="package")
def second_version(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Package of a second version of `texts`."""
    request = ExportRequest(
        str(packages("bert", "fp32").checkpoint), out=tmp_path_factory.mktemp("models"), version="2"
    )
    return export(request).folder


@pytest.fixture(scope="package")
def result_rows(request: pytest.FixtureRequest) -> Iterator[ResultRows]:
    """Rows of deploy/RESULTS.md by part; recorded with `--record`."""
    rows: ResultRows = defaultdict(list)
    yield rows
    if request.config.getoption("--record"):
        for part, part_rows in rows.items():
            deployment_results.record(part, part_rows)
