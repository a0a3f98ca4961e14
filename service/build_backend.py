"""Build backend: setuptools, but an editable installation lists the source directories in a plain `.pth` file.

For two source directories setuptools would install an import hook, which type checkers and editors cannot follow.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
_SOURCES = ("service", "export")
_ROOT = Path(__file__).resolve().parents[1]


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build an editable wheel; with the setting `editable_mode`, as setuptools does."""
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    if not (config_settings and "editable_mode" in config_settings):
        _rewrite(Path(wheel_directory, name))
    return name


def _rewrite(wheel: Path) -> None:
    """Replace everything but the metadata with one `.pth` file."""
    with ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" in name}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    directories = [_ROOT / source for source in _SOURCES if (_ROOT / source).is_dir()]
    files["__editable__.headwaiter.pth"] = "".join(f"{directory}\n" for directory in directories).encode()
    files[record] = _record(files, record)
    with ZipFile(wheel, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def _record(files: Mapping[str, bytes], record: str) -> bytes:
    output = io.StringIO()
    rows = csv.writer(output, lineterminator="\n")
    for name, content in files.items():
        if name != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.writerow((name, f"sha256={digest}", len(content)))
    rows.writerow((record, "", ""))
    return output.getvalue().encode()
