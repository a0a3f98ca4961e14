from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from export.pipeline import Order, export
from service.package import Package, Precision
from tests.checkpoints_kit import write_checkpoint

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.set_num_threads(1)
logging.getLogger("torch.__trace").propagate = False  # thousands of records of every trace


@dataclass(frozen=True, slots=True)
class Exported:
    checkpoint: Path
    package: Package


Packages = Callable[[str, Precision], Exported]


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny checkpoints by kind, each written once."""
    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda kind: write_checkpoint(kind, root / kind))


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory, checkpoints: Callable[[str], Path]) -> Iterator[Packages]:
    """Tiny packages by kind and precision, each exported once."""
    out = tmp_path_factory.mktemp("models")

    @cache
    def make(kind: str, precision: Precision) -> Exported:
        source = checkpoints(kind)
        return Exported(source, export(Order(str(source), out=out, precision=precision)))

    yield make
    assert not list(out.rglob(".*")), "exports left something behind"
