"""Argos packages and folders with a CTranslate2 model: weights, a SentencePiece model, a vocabulary."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from export.errors import SourceError
from export.families.bart import BartLike
from export.tokenizers import write_sentencepiece
from export.transformer_spec import Vocabulary, load_transformer

_MODEL, _PIECES, _ABOUT = "model.bin", "sentencepiece.model", "metadata.json"
_VOCABULARIES = ("shared_vocabulary.json", "shared_vocabulary.txt")
_MEMBERS = (_MODEL, "config.json", _PIECES, _ABOUT, "README.md", *_VOCABULARIES)


@dataclass(frozen=True, slots=True)
class Argos:
    family: BartLike
    attribution: str | None
    languages: dict[str, str] | None


def is_argos(path: Path) -> bool:
    return path.suffix == ".argosmodel" or (path.is_dir() and _find(path, _MODEL) is not None)


def unpack(package: Path, target: Path) -> Path:
    """The members that are needed, each under its own name: nothing of the archive's paths is taken over."""
    try:
        with zipfile.ZipFile(package) as archive:
            for member in archive.infolist():
                name = member.filename.rsplit("/", 1)[-1]
                depth = member.filename.count("/")
                if name in _MEMBERS and depth <= 2 and not member.is_dir():
                    (target / name).write_bytes(archive.read(member))
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise SourceError(f"{package} is not a whole Argos package ({error}): fetch it again.") from error
    return target


def load_argos(folder: Path) -> Argos:
    model, pieces = _demand(folder, _MODEL), _demand(folder, _PIECES)
    settings = _json(folder, "config.json")
    if settings.get("add_source_bos"):
        raise SourceError(f"{folder} wants a token before each source (add_source_bos), which cannot be exported.")
    stated = Vocabulary(
        _vocabulary(folder),
        eos=settings.get("eos_token", "</s>"),
        unk=settings.get("unk_token", "<unk>"),
        start=settings.get("decoder_start_token", "<s>"),
    )
    family, vocabulary = load_transformer(model, stated)
    family.write_tokenizer = partial(
        write_sentencepiece,
        model=pieces,
        vocabulary=vocabulary.tokens,
        eos=vocabulary.eos,
        unk=vocabulary.unk,
        pad=vocabulary.start,
        appends_eos=bool(settings.get("add_source_eos")),
        max_length=family.limits()["source"],
    )
    about = _json(folder, _ABOUT)
    card = _find(folder, "README.md")
    return Argos(
        family=family,
        attribution=card.read_text(encoding="utf-8").strip() if card else None,
        languages={"source": about["from_code"], "target": about["to_code"]} if "from_code" in about else None,
    )


def _vocabulary(folder: Path) -> list[str]:
    for name in _VOCABULARIES:
        if (file := _find(folder, name)) is not None:
            if file.suffix == ".txt":
                return file.read_text(encoding="utf-8").split("\n")[:-1]
            return [str(token) for token in _read(file)]
    raise SourceError(
        f"{folder} has no {_VOCABULARIES[0]}: models with one vocabulary for both languages can be exported."
    )


def _json(folder: Path, name: str) -> dict[str, Any]:
    file = _find(folder, name)
    if file is None:
        return {}
    return dict(_read(file))


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SourceError(f"{file} is not JSON ({error}).") from error


def _demand(folder: Path, name: str) -> Path:
    file = _find(folder, name)
    if file is None:
        raise SourceError(f"{folder} has no {name}: an Argos package has {_MODEL}, {_PIECES} and {_VOCABULARIES[0]}.")
    return file


def _find(folder: Path, name: str) -> Path | None:
    """Beside the others, or in Argos' own layout: the model in a folder, the rest around it."""
    return next(
        (file for file in (folder / name, folder / "model" / name, folder.parent / name) if _is_ours(file, folder)),
        None,
    )


def _is_ours(file: Path, folder: Path) -> bool:
    return file.is_file() and (file.parent != folder.parent or (folder / _MODEL).is_file())
