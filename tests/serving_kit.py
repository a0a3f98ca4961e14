"""Packages that hold a manifest and nothing else, and the serve.yaml files that name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from service.package import MANIFEST, Fused, Manifest, Parity, Preprocessing


def write_package(models: Path, name: str, *, version: str = "1", precision: str = "fp32", **changes: Any) -> Path:
    """A package that can be chosen but not run; returns `models/NAME`."""
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
        fused=Fused(attention=0, fused=0, operators={}),
        parity=Parity(reference="torch fp32", grid="1 × 3", logits=0, batched=0),
        limits={"source": 61},
        preprocessing=Preprocessing(),
        sha256={},
    )
    content = manifest.model_copy(update=changes).model_dump_json(exclude_none=True)
    (folder / MANIFEST).write_text(content, encoding="utf-8")
    return models / name


def write_config(file: Path, content: dict[str, Any] | str) -> Path:
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return file
