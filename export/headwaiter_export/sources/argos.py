"""Argos packages and CTranslate2 directories: weights, a SentencePiece model and a vocabulary."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headwaiter_export.errors import SourceError
from headwaiter_export.families.bart import BartLike
from headwaiter_export.packaging.tokenizers import write_sentencepiece
from headwaiter_export.sources.ctranslate2_transformer import Vocabulary, load_transformer

_MODEL_FILE, _SENTENCEPIECE_FILE, _METADATA_FILE = "model.bin", "sentencepiece.model", "metadata.json"
_VOCABULARIES = ("shared_vocabulary.json", "shared_vocabulary.txt")
_PACKAGE_FILES = (_MODEL_FILE, "config.json", _SENTENCEPIECE_FILE, _METADATA_FILE, "README.md", *_VOCABULARIES)


@dataclass(frozen=True, slots=True)
class ArgosModel:
    family: BartLike
    attribution: str | None
    languages: dict[str, str] | None


def is_argos(path: Path) -> bool:
    return path.suffix == ".argosmodel" or (path.is_dir() and _find_file(path, _MODEL_FILE) is not None)


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


def load_argos(folder: Path) -> ArgosModel:
    """Load the model of an extracted Argos package or a CTranslate2 directory."""
    model, sentencepiece_model = _require_file(folder, _MODEL_FILE), _require_file(folder, _SENTENCEPIECE_FILE)
    settings = _read_optional_json(folder, "config.json")
    if settings.get("add_source_bos"):
        raise SourceError(f"{folder} sets add_source_bos, which is not supported.")
    source_vocabulary = Vocabulary(
        _read_vocabulary(folder),
        eos=settings.get("eos_token", "</s>"),
        unk=settings.get("unk_token", "<unk>"),
        start=settings.get("decoder_start_token", "<s>"),
    )
    family, vocabulary = load_transformer(model, source_vocabulary)
    family.write_tokenizer = partial(
        write_sentencepiece,
        model=sentencepiece_model,
        vocabulary=vocabulary.tokens,
        eos=vocabulary.eos,
        unk=vocabulary.unk,
        pad=vocabulary.start,
        appends_eos=bool(settings.get("add_source_eos")),
        max_length=family.limits()["source"],
    )
    metadata = _read_optional_json(folder, _METADATA_FILE)
    model_card = _find_file(folder, "README.md")
    return ArgosModel(
        family=family,
        attribution=model_card.read_text(encoding="utf-8").strip() if model_card else None,
        languages=(
            {"source": metadata["from_code"], "target": metadata["to_code"]} if "from_code" in metadata else None
        ),
    )


def _read_vocabulary(folder: Path) -> list[str]:
    for name in _VOCABULARIES:
        if (file := _find_file(folder, name)) is not None:
            if file.suffix == ".txt":
                return file.read_text(encoding="utf-8").split("\n")[:-1]
            return [str(token) for token in _read_json(file)]
    raise SourceError(
        f"{folder} has no {_VOCABULARIES[0]}; only models with one vocabulary for both languages are supported."
    )


def _read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    file = _find_file(folder, name)
    if file is None:
        return {}
    return dict(_read_json(file))


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{file} is not valid JSON ({error}).") from error


def _require_file(folder: Path, name: str) -> Path:
    file = _find_file(folder, name)
    if file is None:
        raise SourceError(
            f"{folder} has no {name}; an Argos package has {_MODEL_FILE}, {_SENTENCEPIECE_FILE} and {_VOCABULARIES[0]}."
        )
    return file


def _find_file(folder: Path, name: str) -> Path | None:
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
    return file.is_file() and (file.parent != folder.parent or (folder / _MODEL_FILE).is_file())
