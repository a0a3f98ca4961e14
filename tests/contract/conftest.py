"""The same service, served in each way: on Ray and in a single process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headwaiter.api.keys import format_key_line, make_key
from headwaiter.client import Client
from loadtest.service_process import SINGLE_PROCESS, ServiceProcess, running_service
from tests.conftest import Packages

WAYS = {"single-process": SINGLE_PROCESS, "ray": ()}
"""Options of `headwaiter serve`, by way of serving."""
MODELS = {
    "translator": ("marian", {"max_sequences": 8}),
    "pictures": ("vit", {}),
    "writer": ("gpt2", {"max_sequences": 8, "limits": {"message_mb": 1, "max_queue_wait_ms": 60_000}}),
}
TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def key() -> str:
    return make_key()


@pytest.fixture(
    scope="module", params=[pytest.param(way, marks=[pytest.mark.slow] if way == "ray" else []) for way in WAYS]
)
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return WAYS[request.param]


@pytest.fixture(scope="module")
def models(packages: Packages) -> dict[str, Any]:
    return {
        name: {"path": str(packages(kind, "fp32").package.folder), "resources": {"cpus": 0.1}, **settings}
        for name, (kind, settings) in MODELS.items()
    }


@pytest.fixture(scope="module")
def service(
    options: tuple[str, ...], models: dict[str, Any], key: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceProcess]:
    """A service of three models that requires an API key."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "keys.txt").write_text(format_key_line("tests", key))
    with running_service(folder, models, options=options, auth={"keys": "keys.txt"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: ServiceProcess, key: str) -> Iterator[Client]:
    with service.client(key=key, timeout=TIMEOUT_SECONDS) as client:
        yield client
