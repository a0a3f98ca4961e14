"""Tiny packages for all tests: each exported once in a run, whichever worker needs it first."""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from export.pipeline import Order, export
from service.package import Package, Precision, open_package
from tests.checkpoints_kit import write_checkpoint

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)
logging.getLogger("torch.__trace").propagate = False  # thousands of records of every trace


def pytest_addoption(parser: pytest.Parser) -> None:
    often = 20 if "HEADWAITER_CI" in os.environ else 2
    parser.addoption("--kills", type=int, default=often, help="how often a replica is killed in tests/cluster")
    parser.addoption("--record", action="store_true", help="write what tests/cluster measures to deploy/RESULTS.md")


@dataclass(frozen=True, slots=True)
class Exported:
    checkpoint: Path
    package: Package


Packages = Callable[[str, Precision], Exported]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def checkpoints(shared: Path) -> Callable[[str], Path]:
    """Tiny checkpoints by kind."""

    @cache
    def make(kind: str) -> Path:
        folder = shared / "checkpoints" / kind
        with (shared / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "config.json").is_file():
                write_checkpoint(kind, folder)
        return folder

    return make


@pytest.fixture(scope="session")
def packages(shared: Path, checkpoints: Callable[[str], Path]) -> Packages:
    """Tiny packages by kind and precision."""
    out = shared / "models"

    @cache
    def make(kind: str, precision: Precision) -> Exported:
        source = checkpoints(kind)
        order = Order(str(source), out=out, precision=precision)
        with (shared / f"{kind}-{precision}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            package = open_package(order.folder) if order.folder.exists() else export(order)
        return Exported(source, package)

    return make


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    place = tmp_path / "disk"
    place.mkdir()

    def mount(megabytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(place)]
        subprocess.run(command, check=True, capture_output=True)
        return place

    yield mount
    subprocess.run(["umount", str(place)], check=False, capture_output=True)
