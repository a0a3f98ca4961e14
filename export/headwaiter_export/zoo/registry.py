"""Registry of architectures: name, paper, model class and training recipe."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headwaiter.package.manifest import Task
from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.model import ZooModel
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.sizes import Sizes

GROUPS = (
    "recurrent sequence models",
    "captioning",
    "the transformer",
    "vision",
    "image generation",
    "reinforcement learning",
    "efficient attention",
    "other mixing, depth, positions",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    name: str
    group: str
    paper: str
    model: type[ZooModel]
    recipe: Recipe

    @property
    def task(self) -> Task:
        return self.model.task

    def sizes(self, data: Dataset) -> Sizes:
        """Validated sizes for training on `data`."""
        return self.model.Sizes.read({**self.recipe.sizes, **data.sizes()}, self.name)

    def parameters(self) -> int:
        """Parameter count at the recipe's sizes."""
        return sum(weight.numel() for weight in self.model(self.model.Sizes(**self.recipe.sizes)).parameters())


_registry: dict[str, Architecture] = {}
M = TypeVar("M", bound=type[ZooModel])


def architecture(name: str, *, group: str, paper: str, recipe: Recipe) -> Callable[[M], M]:
    """Class decorator that registers a model class under `name`."""

    def register(model: M) -> M:
        assert group in GROUPS
        _registry[name] = Architecture(name, group, paper, model, recipe)
        return model

    return register


def architectures() -> dict[str, Architecture]:
    """All architectures by name, sorted by group and name."""
    import headwaiter_export.zoo.architectures as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_registry.items(), key=lambda item: (GROUPS.index(item[1].group), item[0])))


def find_architecture(name: str) -> Architecture:
    """Return an architecture by name; raise `SourceError` with suggestions if it does not exist."""
    known = architectures()
    if name in known:
        return known[name]
    suggestions = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(suggestions)}?" if suggestions else f"available: {', '.join(known)}."
    raise SourceError(f"The zoo has no architecture {name!r}; {hint}")


def architecture_name(model: ZooModel) -> str:
    return next(name for name, entry in architectures().items() if entry.model is type(model))
