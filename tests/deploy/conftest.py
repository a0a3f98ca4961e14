"""A service shared by all tests of the package, and every overlay rendered once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.overlay import K8S, manifests, write_overlay
from headwaiter.client import Client
from headwaiter_export.menu import menu
from loadtest.service_process import ServiceProcess, running_service
from tests.conftest import Packages
from tests.deploy.envoy_kit import Certificates
from tests.deploy.manifests_kit import OVERLAYS
from tests.deploy.schemas_kit import Document, skip
from tests.serving_kit import write_package

BUILT_IN_MODELS = {name: entry.task for name, entry in menu().items() if entry.artifact is None}
"""Tasks of the menu models that have no downloadable artifact, by name."""
TIMEOUT_SECONDS = 90
AUTOSCALE = {"target": 0.5, "max": 2, "scale_down_delay_s": 4}
MODELS = {
    "idle": ("bert", {"autoscale": {"min": 0, **AUTOSCALE}}),
    "writer": (
        "gpt2",
        {"max_sequences": 4, "autoscale": {"min": 1, **AUTOSCALE}, "limits": {"max_queue_wait_ms": 60_000}},
    ),
    "player": ("decision_transformer", {"max_sequences": 4}),
}


@pytest.fixture(scope="package")
def service(packages: Packages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    models = {
        name: {"path": str(packages(family, "fp32").package.folder), "resources": {"cpus": 0.1}, **settings}
        for name, (family, settings) in MODELS.items()
    }
    with running_service(tmp_path_factory.mktemp("live"), models) as running:
        yield running


@pytest.fixture(scope="package")
def client(service: ServiceProcess) -> Iterator[Client]:
    with service.client(timeout=TIMEOUT_SECONDS) as client:
        yield client


@pytest.fixture(scope="package")
def kubectl() -> str:
    return shutil.which("kubectl") or skip("kubectl is not installed")


@pytest.fixture(scope="package")
def tree(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """A copy of deploy/, next to the packages that its overlays serve."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(K8S.parent, root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    for precision in ("int8", "fp16"):
        write_package(root / "models", "opus-mt-zh-en", precision=precision)
    for name, task in BUILT_IN_MODELS.items():
        write_package(root / "models", name, task=task)
    return root


@pytest.fixture(scope="package")
def documents(tree: Path) -> Callable[[str], list[Document]]:
    cache: dict[str, list[Document]] = {}

    def render(name: str) -> list[Document]:
        if name not in cache:
            write_overlay(tree / "deploy/k8s" / name)
            cache[name] = manifests(tree / "deploy/k8s" / name)
        return cache[name]

    return render


@pytest.fixture(params=OVERLAYS)
def rendered(request: pytest.FixtureRequest, documents: Callable[[str], list[Document]]) -> list[Document]:
    return documents(request.param)


@pytest.fixture
def copy(tree: Path, tmp_path: Path) -> Path:
    """The overlay `cpu` in its own copy of the tree, which the test may modify."""
    shutil.copytree(tree, tmp_path / "tree")
    return tmp_path / "tree/deploy/k8s/cpu"


@pytest.fixture(scope="package")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
