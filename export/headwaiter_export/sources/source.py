"""Open the SOURCE argument: a checkpoint directory, an Argos package, a hub id or a registered name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headwaiter_export.errors import SourceError
from headwaiter_export.families.family import Family
from headwaiter_export.sources.argos import ArgosModel, load_argos, open_archive
from headwaiter_export.sources.checkpoint import load_checkpoint
from headwaiter_export.sources.checkpoint_files import read_license
from headwaiter_export.sources.location import SourceKind, recognise_source
from headwaiter_export.sources.registry import named_sources

_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "README.md"]


@dataclass(frozen=True, slots=True)
class Source:
    """A loaded model and its provenance."""

    family: Family
    origin: str
    license: str | None = None
    attribution: str | None = None
    languages: dict[str, str] | None = None


@contextmanager
def open_source(text: str) -> Iterator[Source]:
    """Load the model. Temporary files extracted from an archive exist until the context exits."""
    path = Path(text)
    match recognise_source(text):
        case SourceKind.NAMED:
            with named_sources()[text].open() as source:
                yield source
        case SourceKind.ARGOS_ARCHIVE:
            with open_archive(path) as argos:
                yield _argos_source(path.name, argos)
        case SourceKind.ARGOS_DIRECTORY:
            yield _argos_source(path.resolve().name, load_argos(path))
        case SourceKind.CHECKPOINT:
            yield Source(load_checkpoint(path), origin=path.resolve().name, license=read_license(path))
        case SourceKind.HUB:
            folder = _download_from_hub(text)
            yield Source(load_checkpoint(folder), origin=text, license=read_license(folder))


def _argos_source(origin: str, argos: ArgosModel) -> Source:
    return Source(argos.family, origin, None, argos.attribution, argos.languages)


def _download_from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise SourceError(
            f"{name} is not a local directory and could not be downloaded from a model hub ({type(error).__name__}); "
            f"use a directory with config.json and safetensors, or a model of the menu ({', '.join(named_sources())})."
        ) from error
