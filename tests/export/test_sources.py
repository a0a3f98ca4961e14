"""Families and sources of other distributions, found through entry points."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headwaiter_export.errors import SourceError
from headwaiter_export.families.text_classification import DistilBert
from headwaiter_export.request import ExportRequest, check_request
from headwaiter_export.sources.checkpoint import load_checkpoint
from headwaiter_export.sources.location import SourceKind, recognise_source
from headwaiter_export.sources.registry import named_sources
from headwaiter_export.sources.source import open_source
from headwaiter_export.zoo.registry import architectures

MODULE = """
import json
import sys
from contextlib import contextmanager
from pathlib import Path

class OtherSource:
    version = "7"

    @contextmanager
    def open(self):
        from headwaiter_export.sources.checkpoint import load_checkpoint
        from headwaiter_export.sources.source import Source

        yield Source(load_checkpoint(Path({checkpoint!r})), "a test", license="MIT")

def sources():
    return {{"other-model": OtherSource()}}

def load(folder, config):
    from headwaiter_export.sources.checkpoint import load_checkpoint

    (folder / "config.json").write_text(json.dumps(config | {{"model_type": config["inner"]}}))
    return load_checkpoint(folder)
"""
ENTRY_POINTS = """
[headwaiter.sources]
other = other_models:sources
[headwaiter.families]
other-model-type = other_models:load
"""


@pytest.fixture
def other_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: Callable[[str], Path]
) -> Callable[[str], Path]:
    """Installs a distribution that registers a source and a family."""
    site = tmp_path / "site"
    (site / "other_models-1.0.dist-info").mkdir(parents=True)
    (site / "other_models-1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: other-models\nVersion: 1.0\n"
    )
    (site / "other_models-1.0.dist-info/entry_points.txt").write_text(ENTRY_POINTS)
    (site / "other_models.py").write_text(MODULE.format(checkpoint=str(checkpoints("distilbert"))))
    monkeypatch.syspath_prepend(site)
    return checkpoints


@pytest.mark.usefixtures("other_distribution")
def test_source_of_other_distribution_is_found_by_name() -> None:
    assert recognise_source("other-model") is SourceKind.NAMED
    assert ExportRequest("other-model").package_version == "7"
    with open_source("other-model") as source:
        assert isinstance(source.family, DistilBert)
        assert (source.origin, source.license) == ("a test", "MIT")


def test_family_of_other_distribution_loads_its_model_type(
    tmp_path: Path, other_distribution: Callable[[str], Path]
) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for file in other_distribution("distilbert").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "other-model-type", "inner": "distilbert"}))
    assert isinstance(load_checkpoint(folder), DistilBert)


def test_menu_and_zoo_are_registered_through_entry_points() -> None:
    entry = named_sources()["fashion-vit"]
    assert entry.version == ExportRequest("fashion-vit").package_version
    with entry.open() as source:
        assert source.family.name in architectures()


def test_unregistered_name_is_rejected_with_registered_names(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"other-model is not a source; .*fashion-vit"):
        check_request(ExportRequest("other-model", out=tmp_path))
