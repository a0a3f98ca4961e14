"""Model packages and serve.yaml files for tests: manifest-only packages, and tiny models that run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headwaiter.package.manifest import MANIFEST, FusionReport, Manifest, Parity, Preprocessing

if TYPE_CHECKING:
    from tests.conftest import Packages

TASKS = {
    "translator": "marian",
    "captioner": "caption-vit",
    "texts": "bert",
    "pictures": "vit",
    "finder": "detr",
    "player": "decision_transformer",
    "writer": "gpt2",
}
"""Name of the tiny model of each task, and its family."""
_DECODED = ("translator", "captioner", "player", "writer")


def write_package(models: Path, name: str, *, version: str = "1", precision: str = "fp32", **changes: Any) -> Path:
    """Write a package that consists of a manifest only; returns `models/NAME`."""
    folder = models / name / version / precision
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        name=name,
        version=version,
        task="translation",
        family="marian",
        source=name,
        precision=precision,  # type: ignore[arg-type]
        created="2026-11-01T00:00:00+00:00",
        headwaiter="0.1.0",
        parameters=7,
        graphs={},
        fused=FusionReport(attention=0, fused=0, operators={}),
        parity=Parity(reference="torch fp32", grid="1 × 3", logits=0, batched=0),
        limits={"source": 61},
        preprocessing=Preprocessing(),
        sha256={},
    )
    content = manifest.model_copy(update=changes).model_dump_json(exclude_none=True)
    (folder / MANIFEST).write_text(content, encoding="utf-8")
    return models / name


def one_model_per_task(packages: Packages) -> dict[str, Any]:
    """The `models` section of a serve.yaml with one tiny model of every task."""
    folders = {name: packages(kind, "fp32").package.folder for name, kind in TASKS.items()}
    models: dict[str, Any] = {
        name: {"path": str(folder), "resources": {"cpus": 0.1}} for name, folder in folders.items()
    }
    for name in _DECODED:
        models[name]["max_sequences"] = 8
    return models


def write_config(file: Path, content: dict[str, Any] | str) -> Path:
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return file
