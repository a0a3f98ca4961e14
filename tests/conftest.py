"""Fixtures with tiny checkpoints and packages, each built once per test run and shared by all workers."""

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

from headwaiter.package.manifest import Package, Precision, open_package
from headwaiter_export.pipeline import ExportRequest, export
from tests.checkpoints_kit import write_checkpoint

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)
logging.getLogger("torch.__trace").propagate = False  # thousands of records per trace


def pytest_addoption(parser: pytest.Parser) -> None:
    default_kills = 20 if "HEADWAITER_CI" in os.environ else 2
    parser.addoption("--kills", type=int, default=default_kills, help="number of replica kills in tests/cluster")
    parser.addoption(
        "--record", action="store_true", help="write the measurements of tests/cluster to deploy/RESULTS.md"
    )


@dataclass(frozen=True, slots=True)
class ExportedModel:
    checkpoint: Path
    package: Package


Packages = Callable[[str, Precision], ExportedModel]


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory shared by all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def checkpoints(shared_directory: Path) -> Callable[[str], Path]:
    """Tiny checkpoints by kind."""

    @cache
    def build(kind: str) -> Path:
        folder = shared_directory / "checkpoints" / kind
        with (shared_directory / f"{kind}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "config.json").is_file():
                write_checkpoint(kind, folder)
        return folder

    return build


@pytest.fixture(scope="session")
def packages(shared_directory: Path, checkpoints: Callable[[str], Path]) -> Packages:
    """Tiny packages by kind and precision."""
    out = shared_directory / "models"

    @cache
    def export_once(kind: str, precision: Precision) -> ExportedModel:
        source = checkpoints(kind)
        request = ExportRequest(str(source), out=out, precision=precision)
        with (shared_directory / f"{kind}-{precision}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            package = open_package(request.folder) if request.folder.exists() else export(request)
        return ExportedModel(source, package)

    return export_once


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of the given size in MB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    mount_point = tmp_path / "disk"
    mount_point.mkdir()

    def mount(megabytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mount_point)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        return mount_point

    yield mount
    subprocess.run(["umount", str(mount_point)], check=False, capture_output=True, timeout=30)
