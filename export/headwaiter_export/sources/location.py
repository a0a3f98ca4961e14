"""Recognise and check the SOURCE argument from its text and files. Does not import torch."""

from __future__ import annotations

import re
from enum import Enum, auto
from pathlib import Path

from headwaiter_export.errors import SourceError
from headwaiter_export.sources.argos_files import is_argos
from headwaiter_export.sources.checkpoint_files import check_weights, read_config
from headwaiter_export.sources.registry import named_sources

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class SourceKind(Enum):
    NAMED = auto()  # registered through an entry point, such as a model of the menu
    ARGOS_ARCHIVE = auto()
    ARGOS_DIRECTORY = auto()
    CHECKPOINT = auto()
    HUB = auto()


def recognise_source(text: str) -> SourceKind:
    """Return the kind of the source; a path that exists takes precedence over a name. Raises `SourceError`."""
    path = Path(text)
    if is_argos(path):
        return SourceKind.ARGOS_DIRECTORY if path.is_dir() else SourceKind.ARGOS_ARCHIVE
    if path.is_dir():
        return SourceKind.CHECKPOINT
    if not path.exists():
        if text in named_sources():
            return SourceKind.NAMED
        if _HUB_ID.fullmatch(text):
            return SourceKind.HUB
    raise SourceError(
        f"{text} is not a source; supported are a directory with config.json and safetensors, an Argos package, a "
        f"hub id, and the models of the menu ({', '.join(named_sources())})."
    )


def check_source(text: str) -> None:
    """Raise `SourceError` if the source does not exist or lacks required files."""
    kind, path = recognise_source(text), Path(text)
    if kind is SourceKind.CHECKPOINT:
        read_config(path)
        check_weights(path)
    elif kind is SourceKind.ARGOS_ARCHIVE and not path.is_file():
        raise SourceError(f"{text} does not exist; an Argos package is a file with the suffix .argosmodel.")


def default_name(text: str) -> str:
    """Return the last part of the source, reduced to the characters allowed in a package name."""
    stem = Path(text).name.removesuffix(".argosmodel").lower()
    return re.sub(r"[^a-z0-9.-]+", "-", stem).strip("-.") or "model"


def default_version(text: str) -> str:
    """Return the version of a named source, or 1 for any other source."""
    named = named_sources().get(text)
    return "1" if named is None else named.version
