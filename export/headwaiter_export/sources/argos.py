"""Load the models of Argos packages and CTranslate2 directories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from headwaiter_export.errors import SourceError
from headwaiter_export.families.bart import BartLike
from headwaiter_export.packaging.tokenizers import write_sentencepiece
from headwaiter_export.sources.argos_files import (
    METADATA_FILE,
    MODEL_FILE,
    SENTENCEPIECE_FILE,
    VOCABULARIES,
    find_file,
    read_json,
    read_optional_json,
    require_file,
    unpack,
)
from headwaiter_export.sources.ctranslate2_transformer import Vocabulary, load_transformer


@dataclass(frozen=True, slots=True)
class ArgosModel:
    family: BartLike
    attribution: str | None
    languages: dict[str, str] | None


@contextmanager
def open_archive(package: Path) -> Iterator[ArgosModel]:
    """Load the model of an Argos archive. The extracted files exist until the context exits."""
    with TemporaryDirectory() as folder:
        yield load_argos(unpack(package, Path(folder)))


def load_argos(folder: Path) -> ArgosModel:
    """Load the model of an extracted Argos package or a CTranslate2 directory."""
    model, sentencepiece_model = require_file(folder, MODEL_FILE), require_file(folder, SENTENCEPIECE_FILE)
    settings = read_optional_json(folder, "config.json")
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
    metadata = read_optional_json(folder, METADATA_FILE)
    model_card = find_file(folder, "README.md")
    return ArgosModel(
        family=family,
        attribution=model_card.read_text(encoding="utf-8").strip() if model_card else None,
        languages=(
            {"source": metadata["from_code"], "target": metadata["to_code"]} if "from_code" in metadata else None
        ),
    )


def _read_vocabulary(folder: Path) -> list[str]:
    for name in VOCABULARIES:
        if (file := find_file(folder, name)) is not None:
            if file.suffix == ".txt":
                return file.read_text(encoding="utf-8").split("\n")[:-1]
            return [str(token) for token in read_json(file)]
    raise SourceError(
        f"{folder} has no {VOCABULARIES[0]}; only models with one vocabulary for both languages are supported."
    )
