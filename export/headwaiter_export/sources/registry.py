"""Extension points of the exporter. Other packages register through entry points, which are loaded on first use.

`headwaiter.families` maps a `model_type` of config.json to a `CheckpointLoader`. `headwaiter.sources` maps the name of
a collection, such as the menu, to a function without arguments that returns its models as `NamedSource` by name.
Importing this module, or listing the named sources, does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headwaiter_export.families.family import Family
    from headwaiter_export.sources.source import Source

FAMILIES_GROUP = "headwaiter.families"
SOURCES_GROUP = "headwaiter.sources"

# Loads the checkpoint in a directory, whose config.json is given; raises `SourceError` if it is invalid.
CheckpointLoader = Callable[[Path, dict[str, Any]], "Family"]


class NamedSource(Protocol):
    """A model that `headwaiter export` finds by its name."""

    @property
    def version(self) -> str:
        """Default version of the package."""

    def open(self) -> AbstractContextManager[Source]:
        """Load the model. Temporary files exist until the context exits."""


def find_checkpoint_loader(model_type: str) -> CheckpointLoader | None:
    """Return the loader registered for `model_type`, or None."""
    for entry_point in entry_points(group=FAMILIES_GROUP, name=model_type):
        loader: CheckpointLoader = entry_point.load()
        return loader
    return None


def named_sources() -> dict[str, NamedSource]:
    """Return all registered sources by name."""
    sources: dict[str, NamedSource] = {}
    for entry_point in entry_points(group=SOURCES_GROUP):
        sources |= entry_point.load()()
    return sources
