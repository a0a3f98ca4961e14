"""The files of Argos packages and CTranslate2 directories: weights, a SentencePiece model and a vocabulary."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

from headwaiter_export.errors import SourceError

MODEL_FILE, SENTENCEPIECE_FILE, METADATA_FILE = "model.bin", "sentencepiece.model", "metadata.json"
VOCABULARIES = ("shared_vocabulary.json", "shared_vocabulary.txt")
_PACKAGE_FILES = (MODEL_FILE, "config.json", SENTENCEPIECE_FILE, METADATA_FILE, "README.md", *VOCABULARIES)
_MAX_MODEL_BYTES, _MAX_OTHER_BYTES = 8 << 30, 64 << 20  # of an extracted file
_MB = 1 << 20


def is_argos(path: Path) -> bool:
    return path.suffix == ".argosmodel" or (path.is_dir() and find_file(path, MODEL_FILE) is not None)


def unpack(package: Path, target: Path) -> Path:
    """Extract the required files into `target` by file name, ignoring the paths in the archive, and return `target`.

    Raises `SourceError` if the archive is damaged or a file is too large.
    """
    try:
        with zipfile.ZipFile(package) as archive:
            for member in archive.infolist():
                name = member.filename.rsplit("/", 1)[-1]
                depth = member.filename.count("/")
                if name in _PACKAGE_FILES and depth <= 2 and not member.is_dir():
                    _check_size(member, name, package)
                    with archive.open(member) as source, (target / name).open("wb") as file:
                        shutil.copyfileobj(source, file)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise SourceError(f"{package} is not a complete Argos package ({error}); download it again.") from error
    return target


def _check_size(member: zipfile.ZipInfo, name: str, package: Path) -> None:
    """Reject archives that expand without bounds; `zipfile` never extracts more than the size that is declared."""
    limit = _MAX_MODEL_BYTES if name == MODEL_FILE else _MAX_OTHER_BYTES
    if member.file_size > limit:
        raise SourceError(
            f"{package} has a {name} of {member.file_size / _MB:,.0f} MiB; the limit is {limit / _MB:,.0f} MiB."
        )


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
