"""One real service for all that is tried with one, and every overlay made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.overlay import K8S, manifests, write
from export.menu import menu
from loadtest.served import Service, serving
from service.client import Client
from tests.conftest import Packages
from tests.deploy.envoy_kit import Papers
from tests.deploy.manifests_kit import OVERLAYS
from tests.deploy.schemas_kit import Document, skip
from tests.serving_kit import write_package

HOUSE = {name: dish.task for name, dish in menu().items() if dish.parcel is None}
"""Beside the translator."""
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


@pytest.fixture(scope="package")
def kubectl() -> str:
    return shutil.which("kubectl") or skip("kubectl is not installed")


@pytest.fixture(scope="package")
def tree(kubectl: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """A copy of deploy/ beside packages for all that it serves."""
    root = tmp_path_factory.mktemp("tree")
    shutil.copytree(K8S.parent, root / "deploy", ignore=shutil.ignore_patterns("__pycache__"))
    for precision in ("int8", "fp16"):
        write_package(root / "models", "opus-mt-zh-en", precision=precision)
    for name, task in HOUSE.items():
        write_package(root / "models", name, task=task)
    return root


@pytest.fixture(scope="package")
def documents(tree: Path) -> Callable[[str], list[Document]]:
    made: dict[str, list[Document]] = {}

    def make(name: str) -> list[Document]:
        if name not in made:
            write(tree / "deploy/k8s" / name)
            made[name] = manifests(tree / "deploy/k8s" / name)
        return made[name]

    return make


@pytest.fixture(params=OVERLAYS)
def rendered(request: pytest.FixtureRequest, documents: Callable[[str], list[Document]]) -> list[Document]:
    return documents(request.param)


@pytest.fixture
def copy(tree: Path, tmp_path: Path) -> Path:
    """The overlay `cpu` in a tree of its own, to be spoilt."""
    shutil.copytree(tree, tmp_path / "tree")
    return tmp_path / "tree/deploy/k8s/cpu"


@pytest.fixture(scope="package")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))
