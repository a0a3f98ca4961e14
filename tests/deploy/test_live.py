"""Scaling and watching, on a real Ray Serve with real engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from loadtest.served import Service, serving
from service.client import Client
from tests.conftest import Packages

pytestmark = pytest.mark.slow

SHRINK_SECONDS = 4
UNTIL_SECONDS = 90
SCALED = {"target": 0.5, "max": 2, "shrink_s": SHRINK_SECONDS}
MODELS = {
    "sleeper": ("bert", {"autoscale": {"min": 0, **SCALED}}),
    "writer": ("gpt2", {"rows": 4, "autoscale": {"min": 1, **SCALED}, "limits": {"wait_ms": 60_000}}),
    "player": ("decision_transformer", {"rows": 4}),
}


@pytest.fixture(scope="module")
def service(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    told = {
        name: {"path": str(packages(kind, "fp32").package.folder), "resources": {"cpus": 0.1}, **more}
        for name, (kind, more) in MODELS.items()
    }
    with serving(tmp_path_factory.mktemp("live"), told) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Client]:
    with service.client(timeout=UNTIL_SECONDS) as client:
        yield client


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNTIL_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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
