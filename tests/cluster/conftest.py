"""One cluster of three machines for all that is done to one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy import results
from export.pipeline import Order, export
from loadtest import namespaces
from loadtest.cluster import Cluster, cluster, wait_until
from service import open_model
from service.client import Client
from tests.cluster.load_kit import Ask
from tests.conftest import Packages

Told = dict[str, list[list[str]]]
REPLICAS = 2
TARGET = 40.0
_TURNS = 10
_HALF_A_WORKER_EACH = {"replicas": REPLICAS, "resources": {"cpus": 0.5}}


@dataclass
class Stage:
    """The cluster, what is served on it, and how it is called."""

    cluster: Cluster
    models: dict[str, Any]
    states: list[list[float]]
    actions: list[list[float]]

    def await_nodes(self) -> None:
        wait_until(lambda: self.cluster.nodes() == 1 + len(self.cluster.workers), "all nodes have joined")

    def await_replicas(self) -> None:
        wait_until(
            lambda: all(len(self.cluster.replicas(name)) == REPLICAS for name in self.models), "models have replicas"
        )

    def classify(self, client: Client, request_id: str) -> str:
        """Which version answered."""
        return client.classify("texts", text="ab cd", request_id=request_id).model.version

    def play(self, client: Client, request_id: str) -> str:
        """An episode, whose actions are the same wherever it goes on."""
        with client.episode("player", target_return=TARGET, request_id=request_id) as episode:
            for step, (state, expected) in enumerate(zip(self.states, self.actions, strict=True)):
                action = episode.step(state, 0.5 * step if step else None)
                assert action.continuous == pytest.approx(expected, abs=1e-4)
        return "played"

    @property
    def asks(self) -> list[Ask]:
        return [self.classify, self.classify, self.classify, self.play]


@pytest.fixture(scope="package", autouse=True)
def _possible() -> None:
    if why := namespaces.missing():
        pytest.skip(why)


@pytest.fixture(scope="package")
def stage(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folders = {"texts": "bert", "player": "decision_transformer"}
    models = {
        name: {"path": str(packages(kind, "fp32").package.folder), **_HALF_A_WORKER_EACH}
        for name, kind in folders.items()
    }
    states, actions = _episode(Path(str(models["player"]["path"])))
    with cluster(tmp_path_factory.mktemp("cluster")) as made:
        made.deploy(models)
        yield Stage(made, models, states, actions)


def _episode(package: Path) -> tuple[list[list[float]], list[list[float]]]:
    """States, and what the model does in them in this process."""
    with open_model(package, threads=1) as model:
        size = model.task.policy.state_size
        states = [[0.1 * step - 0.05 * place for place in range(size)] for step in range(8)]
        with model.episode(TARGET) as episode:
            actions = [episode.step(state, 0.5 * step if step else None) for step, state in enumerate(states)]
    return states, [list(action.continuous) for action in actions]


@pytest.fixture
def whole(stage: Stage) -> Stage:
    """Every worker is a node, and every model has its replicas."""
    for worker in stage.cluster.workers:
        worker.connect()
        if not worker.is_running:
            stage.cluster.start_worker(worker)
    stage.await_nodes()
    stage.await_replicas()
    return stage


@pytest.fixture
def spread(whole: Stage) -> Stage:
    """Every worker has a replica of each model, so that one can be lost."""
    for name in whole.models:
        for _ in range(_TURNS):
            if whole.cluster.is_spread([name]):
                break
            whole.cluster.replicas(name)[0].kill()  # Serve takes workers in turn, so another may be the next
            whole.await_replicas()
    assert whole.cluster.is_spread(whole.models), "Serve puts all replicas of a model onto one worker"
    return whole


@pytest.fixture(scope="package")
def second_version(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `texts`."""
    order = Order(str(packages("bert", "fp32").checkpoint), out=tmp_path_factory.mktemp("models"), version="2")
    return export(order).folder


@pytest.fixture(scope="package")
def told(request: pytest.FixtureRequest) -> Iterator[Told]:
    """Rows of deploy/RESULTS.md, by part; written with `--record`."""
    rows: Told = defaultdict(list)
    yield rows
    if request.config.getoption("--record"):
        for part, found in rows.items():
            results.record(part, found)
