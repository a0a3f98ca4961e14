"""The models of the menu as sources of `headwaiter export`, registered as entry point of `headwaiter.sources`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwaiter_export.menu import MenuEntry, fetch, menu

if TYPE_CHECKING:
    from headwaiter_export.sources.source import Source


@dataclass(frozen=True, slots=True)
class MenuSource:
    entry: MenuEntry

    @property
    def version(self) -> str:
        return self.entry.version

    @contextmanager
    def open(self) -> Iterator[Source]:
        from headwaiter_export.sources.argos import open_archive
        from headwaiter_export.sources.checkpoint import load_checkpoint
        from headwaiter_export.sources.source import Source

        entry = self.entry
        if entry.artifact is None:
            family = load_checkpoint(entry.weights)
            yield Source(family, f"headwaiter menu: {entry.name}", entry.license, entry.attribution)
            return
        with open_archive(fetch(entry)) as argos:
            yield Source(argos.family, entry.artifact.requirement, entry.license, entry.attribution, argos.languages)


def menu_sources() -> dict[str, MenuSource]:
    return {name: MenuSource(entry) for name, entry in menu().items()}
