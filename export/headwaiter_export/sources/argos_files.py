"""The files of Argos packages and CTranslate2 directories: weights, a SentencePiece model and a vocabulary."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from headwaiter_export.errors import SourceError

MODEL_FILE, SENTENCEPIECE_FILE, METADATA_FILE = "model.bin", "sentencepiece.model", "metadata.json"
VOCABULARIES = ("shared_vocabulary.json", "shared_vocabulary.txt")
_PACKAGE_FILES = (MODEL_FILE, "config.json", SENTENCEPIECE_FILE, METADATA_FILE, "README.md", *VOCABULARIES)


def is_argos(path: Path) -> bool:
    return path.suffix == ".argosmodel" or (path.is_dir() and find_file(path, MODEL_FILE) is not None)


def unpack(package: Path, target: Path) -> Path:
    """Extract the required files into `target` by file name, ignoring the paths in the archive, and return `target`.

    Raises `SourceError` if the archive is damaged.
    """
    try:
        with zipfile.ZipFile(package) as archive:
            for member in archive.infolist():
                name = member.filename.rsplit("/", 1)[-1]
                depth = member.filename.count("/")
                if name in _PACKAGE_FILES and depth <= 2 and not member.is_dir():
                    (target / name).write_bytes(archive.read(member))
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise SourceError(f"{package} is not a complete Argos package ({error}); download it again.") from error
    return target


def read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    file = find_file(folder, name)
    if file is None:
        return {}
    return dict(read_json(file))


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{file} is not valid JSON ({error}).") from error


def require_file(folder: Path, name: str) -> Path:
    file = find_file(folder, name)
    if file is None:
        raise SourceError(
            f"{folder} has no {name}; an Argos package has {MODEL_FILE}, {SENTENCEPIECE_FILE} and {VOCABULARIES[0]}."
        )
    return file


def find_file(folder: Path, name: str) -> Path | None:
    """Find a file in a flat directory, or in the Argos layout with the model in a `model` subdirectory."""
    return next(
        (
            file
            for file in (folder / name, folder / "model" / name, folder.parent / name)
            if _belongs_to_package(file, folder)
        ),
        None,
    )


def _belongs_to_package(file: Path, folder: Path) -> bool:
    return file.is_file() and (file.parent != folder.parent or (folder / MODEL_FILE).is_file())
