"""One real service for all that is tried with one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.served import Service, serving
from service.client import Client
from tests.conftest import Packages

UNTIL_SECONDS = 90
SCALED = {"target": 0.5, "max": 2, "shrink_s": 4}
MODELS = {
    "sleeper": ("bert", {"autoscale": {"min": 0, **SCALED}}),
    "writer": ("gpt2", {"rows": 4, "autoscale": {"min": 1, **SCALED}, "limits": {"wait_ms": 60_000}}),
    "player": ("decision_transformer", {"rows": 4}),
}


@pytest.fixture(scope="package")
def service(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    told = {
        name: {"path": str(packages(kind, "fp32").package.folder), "resources": {"cpus": 0.1}, **more}
        for name, (kind, more) in MODELS.items()
    }
    with serving(tmp_path_factory.mktemp("live"), told) as running:
        yield running


@pytest.fixture(scope="package")
def client(service: Service) -> Iterator[Client]:
    with service.client(timeout=UNTIL_SECONDS) as client:
        yield client
