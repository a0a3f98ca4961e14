"""Faults of nodes, replicas and the controller under load: every request is answered exactly once."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from loadtest.cluster.network_namespaces import Machine
from loadtest.cluster.ray_cluster import Cluster, Replica, wait_until
from tests.cluster.conftest import EPISODE, REPLICAS, ClusterUnderTest, ResultRows
from tests.cluster.load_kit import CallLog, continuous_load

pytestmark = [pytest.mark.slowest, pytest.mark.cluster]
_IN_FLIGHT_SECONDS = 1.0


@dataclass
class FaultRun:
    """A fault that is injected into a cluster under load."""

    cluster_under_test: ClusterUnderTest
    call_log: CallLog
    started_at: float
    recovery_seconds: float = 0.0
    lost: list[Path] = field(default_factory=list)
    """Logs of replicas and directories of machines whose responses may not have reached the client."""
    lost_at: float = 0.0  # Unix time at which a machine was lost, and with it the responses in its proxy

    @property
    def cluster(self) -> Cluster:
        return self.cluster_under_test.cluster

    def wait_until_all_active(self, since: float, lost: Machine | None = None) -> None:
        """Wait until all replicas of all models have answered since the time `since`; keeps the longest recovery."""
        for model in self.cluster_under_test.models:
            wait_until(partial(self._all_active, model, since, lost), f"all replicas of {model} answer")
        self.recovery_seconds = max(self.recovery_seconds, time.time() - since)

    def kill(self, replica: Replica) -> None:
        assert replica.log is not None
        self.lost.append(replica.log)
        replica.kill()
        wait_until(lambda: not Path(f"/proc/{replica.process}").exists(), "the killed process has ended")

    def _all_active(self, model: str, since: float, lost: Machine | None) -> bool:
        return self.cluster.active_replicas(model, since, lost) >= REPLICAS


@contextmanager
def under_load(
    cluster_under_test: ClusterUnderTest, fault: str = "", result_rows: ResultRows | None = None
) -> Iterator[FaultRun]:
    """Run the load during the block, once all replicas answer, and check that no request fails."""
    started_at = time.time()
    with continuous_load(cluster_under_test.cluster, *cluster_under_test.call_functions) as call_log:
        run = FaultRun(cluster_under_test, call_log, started_at)
        run.wait_until_all_active(started_at)
        run.recovery_seconds = 0.0
        yield run
    assert call_log.failed == []
    if result_rows is not None:
        row = [fault, f"{len(call_log.answered):,}", "0", f"{call_log.longest:.1f} s", f"{run.recovery_seconds:.1f} s"]
        result_rows["fault_injection"].append(row)


def assert_one_answer_per_call(run: FaultRun) -> None:
    """Compare the results of the clients with the logs of the replicas: each request is answered exactly once.

    Lost replicas, and others through the proxy of a machine lost at that moment, may have logged further responses that
    did not reach a client.
    """
    responses: Counter[str] = Counter()
    for logged in run.cluster.logged("texts"):
        if logged.when > run.started_at and logged.code == "OK":
            is_lost = any(lost in (logged.replica, *logged.replica.parents) for lost in run.lost)
            is_lost |= logged.when < run.lost_at + _IN_FLIGHT_SECONDS
            responses[logged.request_id] += 0 if is_lost else 1
    answered = {request_id for request_id, result in run.call_log.answered.items() if result != EPISODE}
    assert answered == responses.keys()
    assert [request_id for request_id, count in responses.items() if count > 1] == []


def test_spread_replicas_all_answer(spread_cluster: ClusterUnderTest) -> None:
    for model in spread_cluster.models:
        assert {replica.machine.name for replica in spread_cluster.cluster.replicas(model)} == {
            worker.name for worker in spread_cluster.cluster.workers
        }
    with under_load(spread_cluster) as run:
        run.wait_until_all_active(time.time())
    assert_one_answer_per_call(run)


def test_model_update_loses_no_request(
    spread_cluster: ClusterUnderTest, result_rows: ResultRows, second_version: Path
) -> None:
    """Old and new replicas answer at the same time, on both workers."""

    def replica_processes() -> set[int]:
        return {replica.process for replica in spread_cluster.cluster.replicas("texts")}

    with under_load(spread_cluster, "another version of a model deployed", result_rows) as run:
        since, old = time.time(), replica_processes()
        spread_cluster.models["texts"]["path"] = str(second_version)
        spread_cluster.cluster.deploy(spread_cluster.models)
        wait_until(lambda: not old & replica_processes(), "the old replicas have stopped")
        run.wait_until_all_active(since)
    assert_one_answer_per_call(run)
    versions = Counter(result for result in run.call_log.answered.values() if result != EPISODE)
    assert versions.keys() == {"1", "2"}
    responses = [logged for logged in spread_cluster.cluster.logged("texts") if logged.when > run.started_at]
    assert Counter(logged.code for logged in responses) == {"OK": versions.total()}
    by_replica = defaultdict(set)
    for logged in responses:
        by_replica[logged.replica].add(run.call_log.answered[logged.request_id])
    assert sorted(map(sorted, by_replica.values())) == [["1"], ["1"], ["2"], ["2"]]


def test_repeatedly_killed_replica_loses_no_request(
    healthy_cluster: ClusterUnderTest, result_rows: ResultRows, request: pytest.FixtureRequest
) -> None:
    kills = request.config.getoption("--kills")
    with under_load(healthy_cluster, f"a replica killed, {kills} times; slowest recovery", result_rows) as run:
        for index in range(kills):
            victim = healthy_cluster.cluster.replicas("texts")[index % REPLICAS]
            since = time.time()
            run.kill(victim)
            run.wait_until_all_active(since)
    assert_one_answer_per_call(run)


def test_killed_replicas_of_a_model_lose_no_request(healthy_cluster: ClusterUnderTest, result_rows: ResultRows) -> None:
    with under_load(healthy_cluster, "all replicas of a model killed at once", result_rows) as run:
        since = time.time()
        for replica in healthy_cluster.cluster.replicas("texts"):
            run.kill(replica)
        run.wait_until_all_active(since)
    assert_one_answer_per_call(run)


def test_killed_controller_loses_no_request(healthy_cluster: ClusterUnderTest, result_rows: ResultRows) -> None:
    """The restarted controller replaces a replica that was killed in the meantime."""
    with under_load(healthy_cluster, "the controller killed, and a replica", result_rows) as run:
        controller, victim = healthy_cluster.cluster.controller(), healthy_cluster.cluster.replicas("texts")[0]
        assert controller is not None
        since = time.time()
        os.kill(controller, signal.SIGKILL)
        run.kill(victim)
        wait_until(
            lambda: healthy_cluster.cluster.controller() not in (None, controller), "the controller has restarted"
        )
        run.wait_until_all_active(since)
    assert_one_answer_per_call(run)


def test_killed_node_loses_no_request(spread_cluster: ClusterUnderTest, result_rows: ResultRows) -> None:
    lost = spread_cluster.cluster.workers[0]
    with under_load(spread_cluster, "a worker killed", result_rows) as run:
        since = time.time()
        run.lost.append(lost.folder)
        run.lost_at = time.time()
        lost.kill()
        run.wait_until_all_active(since, lost)
    assert_one_answer_per_call(run)


def test_disconnected_and_reconnected_node_loses_no_request(
    spread_cluster: ClusterUnderTest, result_rows: ResultRows
) -> None:
    lost = spread_cluster.cluster.workers[1]
    with under_load(spread_cluster, "a worker disconnected from the network", result_rows) as run:
        run.lost.append(lost.folder)
        run.lost_at = since = time.time()
        lost.disconnect()
        run.wait_until_all_active(since, lost)
    assert_one_answer_per_call(run)
    with under_load(spread_cluster, "the same worker reconnected", result_rows) as run:
        run.lost.append(lost.folder)
        since = time.time()
        lost.connect()
        wait_until(lambda: not lost.is_running, "Ray on the removed worker has stopped")
        spread_cluster.cluster.start_worker(lost)
        spread_cluster.wait_for_nodes()
        run.wait_until_all_active(since)
    assert_one_answer_per_call(run)
