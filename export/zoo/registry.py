"""The list of systems: what each is called, which paper it is from, what it is served as."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from export.errors import SourceError
from export.zoo.data.base import Data
from export.zoo.model import ZooModel
from export.zoo.recipe import Recipe
from export.zoo.sizes import Sizes
from service.package import Task

GROUPS = (
    "before attention was all",
    "captioning",
    "the transformer",
    "vision",
    "images from noise",
    "decisions",
    "cheaper attention",
    "other mixing, depth, positions",
)


@dataclass(frozen=True, slots=True)
class System:
    name: str
    group: str
    paper: str
    model: type[ZooModel]
    recipe: Recipe

    @property
    def task(self) -> Task:
        return self.model.task

    def sizes(self, data: Data) -> Sizes:
        """Those that the recipe trains."""
        return self.model.Sizes.read({**self.recipe.sizes, **data.sizes()}, self.name)

    def parameters(self) -> int:
        """Of the default sizes."""
        return sum(weight.numel() for weight in self.model(self.model.Sizes(**self.recipe.sizes)).parameters())


_systems: dict[str, System] = {}
M = TypeVar("M", bound=type[ZooModel])


def system(name: str, *, group: str, paper: str, recipe: Recipe) -> Callable[[M], M]:
    """Registers a model class under the name that people type."""

    def register(model: M) -> M:
        assert group in GROUPS
        _systems[name] = System(name, group, paper, model, recipe)
        return model

    return register


def systems() -> dict[str, System]:
    """In the order of the story."""
    import export.zoo.systems as folder

    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    return dict(sorted(_systems.items(), key=lambda item: (GROUPS.index(item[1].group), item[0])))


def find(name: str) -> System:
    known = systems()
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}."
    raise SourceError(f"The zoo has no {name!r}; {hint}")


def name_of(model: ZooModel) -> str:
    return next(name for name, entry in systems().items() if entry.model is type(model))
