"""Open the SOURCE argument: a checkpoint directory, an Argos package, a hub id or a menu name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from headwaiter_export.errors import SourceError
from headwaiter_export.families.family import Family
from headwaiter_export.menu import MenuEntry, fetch, menu
from headwaiter_export.sources.argos import ArgosModel, is_argos, load_argos, unpack
from headwaiter_export.sources.checkpoint import load_checkpoint, read_license

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "README.md"]


@dataclass(frozen=True, slots=True)
class Source:
    """A loaded model and its provenance."""

    family: Family
    origin: str
    license: str | None = None
    attribution: str | None = None
    languages: dict[str, str] | None = None


def default_name(text: str) -> str:
    """Return the last part of the source, reduced to the characters allowed in a package name."""
    stem = Path(text).name.removesuffix(".argosmodel").lower()
    return re.sub(r"[^a-z0-9.-]+", "-", stem).strip("-.") or "model"


def default_version(text: str) -> str:
    """Return the version of the menu entry, or 1 for any other source."""
    entry = menu().get(text)
    return "1" if entry is None else entry.version


@contextmanager
def open_source(text: str) -> Iterator[Source]:
    """Load the model. Temporary files extracted from an archive exist until the context exits."""
    path = Path(text)
    if (entry := menu().get(text)) is not None and not path.exists():
        with _open_menu_entry(entry) as source:
            yield source
    elif is_argos(path) and path.is_file():
        with _open_argos_archive(path) as argos:
            yield _argos_source(path.name, argos)
    elif is_argos(path):
        yield _argos_source(path.resolve().name, load_argos(path))
    elif path.is_dir():
        yield Source(load_checkpoint(path), origin=path.resolve().name, license=read_license(path))
    elif _HUB_ID.fullmatch(text) and not path.exists():
        folder = _download_from_hub(text)
        yield Source(load_checkpoint(folder), origin=text, license=read_license(folder))
    else:
        raise SourceError(
            f"{text} is not a source; supported are a directory with config.json and safetensors, an Argos package, a "
            f"hub id, and the models of the menu ({', '.join(menu())})."
        )


@contextmanager
def _open_argos_archive(package: Path) -> Iterator[ArgosModel]:
    with TemporaryDirectory() as folder:
        yield load_argos(unpack(package, Path(folder)))


@contextmanager
def _open_menu_entry(entry: MenuEntry) -> Iterator[Source]:
    if entry.artifact is None:
        yield Source(load_checkpoint(entry.weights), f"headwaiter menu: {entry.name}", entry.license, entry.attribution)
        return
    with _open_argos_archive(fetch(entry)) as argos:
        yield Source(argos.family, entry.artifact.requirement, entry.license, entry.attribution, argos.languages)


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
            f"use a directory with config.json and safetensors, or a model of the menu ({', '.join(menu())})."
        ) from error
