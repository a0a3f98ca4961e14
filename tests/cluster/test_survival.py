"""Nodes, replicas and the controller are lost under load: callers get every answer, once."""

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

from loadtest.cluster import Cluster, Replica, wait_until
from loadtest.namespaces import Machine
from tests.cluster.conftest import REPLICAS, Stage, Told
from tests.cluster.load_kit import Account, load

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
_UNDER_WAY_SECONDS = 1.0


@dataclass
class Watch:
    """What is done to a cluster while it is called."""

    stage: Stage
    account: Account
    begun: float
    seconds: float = 0.0
    lost: list[Path] = field(default_factory=list)
    lost_at: float = 0.0  # when a machine was, and with it answers that its proxy had to carry
    """Logs of replicas, and folders of machines, that may have given an answer which did not arrive."""

    @property
    def cluster(self) -> Cluster:
        return self.stage.cluster

    def await_strength(self, since: float, lost: Machine | None = None) -> None:
        """As many replicas of each model as should have answered since; of several such times the longest is kept."""
        for model in self.stage.models:
            wait_until(partial(self._is_strong, model, since, lost), f"{model} is all at work")
        self.seconds = max(self.seconds, time.time() - since)

    def kill(self, replica: Replica) -> None:
        assert replica.log is not None
        self.lost.append(replica.log)
        replica.kill()
        wait_until(lambda: not Path(f"/proc/{replica.process}").exists(), "the kernel has ended it")

    def _is_strong(self, model: str, since: float, lost: Machine | None) -> bool:
        return self.cluster.at_work(model, since, lost) >= REPLICAS


@contextmanager
def watched(stage: Stage, what: str = "", told: Told | None = None) -> Iterator[Watch]:
    begun = time.time()
    with load(stage.cluster, *stage.asks) as account:
        watch = Watch(stage, account, begun)
        watch.await_strength(begun)
        watch.seconds = 0.0
        yield watch
    assert account.failed == []
    if told is not None:
        row = [what, f"{len(account.answered):,}", "0", f"{account.longest:.1f} s", f"{watch.seconds:.1f} s"]
        told["survival"].append(row)


def assert_answered_once(watch: Watch) -> None:
    """What callers got is what replicas gave: each answer once. Only who was lost may have answered too, to nobody, and
    so may others through the proxy of a machine that was lost at that moment."""
    given: Counter[str] = Counter()
    for each in watch.cluster.logged("texts"):
        if each.when > watch.begun and each.code == "OK":
            is_lost = any(lost in (each.replica, *each.replica.parents) for lost in watch.lost)
            is_lost |= each.when < watch.lost_at + _UNDER_WAY_SECONDS
            given[each.request_id] += 0 if is_lost else 1
    answered = {each for each, answer in watch.account.answered.items() if answer != "played"}
    assert answered == given.keys()
    assert [each for each, times in given.items() if times > 1] == []


def test_replicas_are_spread_and_all_answer(spread: Stage) -> None:
    for model in spread.models:
        assert {each.machine.name for each in spread.cluster.replicas(model)} == {
            worker.name for worker in spread.cluster.workers
        }
    with watched(spread) as watch:
        watch.await_strength(time.time())
    assert_answered_once(watch)


def test_a_model_is_updated(spread: Stage, told: Told, second_version: Path) -> None:
    """Old replicas and new ones answer side by side, on both workers; nobody notices but by the version."""
    with watched(spread, "another version of a model deployed", told) as watch:
        since, old = time.time(), {each.process for each in spread.cluster.replicas("texts")}
        spread.models["texts"]["path"] = str(second_version)
        spread.cluster.deploy(spread.models)
        wait_until(lambda: not old & {each.process for each in spread.cluster.replicas("texts")}, "the old have left")
        watch.await_strength(since)
    assert_answered_once(watch)
    versions = Counter(answer for answer in watch.account.answered.values() if answer != "played")
    assert versions.keys() == {"1", "2"}
    given = Counter(each.code for each in spread.cluster.logged("texts") if each.when > watch.begun)
    assert given == {"OK": versions.total()}
    by_replica = defaultdict(set)
    for each in spread.cluster.logged("texts"):
        if each.when > watch.begun:
            by_replica[each.replica].add(watch.account.answered[each.request_id])
    assert sorted(map(sorted, by_replica.values())) == [["1"], ["1"], ["2"], ["2"]]


def test_a_replica_is_killed_again_and_again(whole: Stage, told: Told, request: pytest.FixtureRequest) -> None:
    kills = request.config.getoption("--kills")
    with watched(whole, f"a replica killed, {kills} times; the slowest return", told) as watch:
        for index in range(kills):
            victim = whole.cluster.replicas("texts")[index % REPLICAS]
            since = time.time()
            watch.kill(victim)
            watch.await_strength(since)
    assert_answered_once(watch)


def test_all_replicas_of_a_model_are_killed(whole: Stage, told: Told) -> None:
    with watched(whole, "all replicas of a model killed at once", told) as watch:
        since = time.time()
        for each in whole.cluster.replicas("texts"):
            watch.kill(each)
        watch.await_strength(since)
    assert_answered_once(watch)


def test_the_controller_is_killed(whole: Stage, told: Told) -> None:
    """And does its work when it is back: a replica that is killed meanwhile is replaced."""
    with watched(whole, "the controller killed, and a replica", told) as watch:
        controller, victim = whole.cluster.controller(), whole.cluster.replicas("texts")[0]
        assert controller is not None
        since = time.time()
        os.kill(controller, signal.SIGKILL)
        watch.kill(victim)
        wait_until(lambda: whole.cluster.controller() not in (None, controller), "another controller comes")
        watch.await_strength(since)
    assert_answered_once(watch)


def test_a_node_is_killed(spread: Stage, told: Told) -> None:
    lost = spread.cluster.workers[0]
    with watched(spread, "a worker killed", told) as watch:
        since = time.time()
        watch.lost.append(lost.folder)
        watch.lost_at = time.time()
        lost.kill()
        watch.await_strength(since, lost)
    assert_answered_once(watch)


def test_a_node_is_cut_off_and_comes_back(spread: Stage, told: Told) -> None:
    lost = spread.cluster.workers[1]
    with watched(spread, "a worker cut off from the network", told) as watch:
        watch.lost.append(lost.folder)
        watch.lost_at = since = time.time()
        lost.cut_off()
        watch.await_strength(since, lost)
    assert_answered_once(watch)
    with watched(spread, "the same worker connected again", told) as watch:
        watch.lost.append(lost.folder)
        since = time.time()
        lost.connect()
        wait_until(lambda: not lost.is_running, "Ray on the worker, which was given up, ends itself")
        spread.cluster.start_worker(lost)
        spread.await_nodes()
        watch.await_strength(since)
    assert_answered_once(watch)
