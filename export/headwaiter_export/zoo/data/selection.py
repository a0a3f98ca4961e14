"""Selection of another dataset than that of a recipe: `sorting`, or `listops:length=16` with options."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.data.base import Dataset
from headwaiter_export.zoo.data.cartpole import CartPole
from headwaiter_export.zoo.data.copying import Copying
from headwaiter_export.zoo.data.dates import Dates
from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.data.distilled_digits import DistilledDigits
from headwaiter_export.zoo.data.drawn_digits import DrawnDigits
from headwaiter_export.zoo.data.fashion import Fashion
from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.data.masked_cartpole import MaskedCartPole
from headwaiter_export.zoo.data.reversing import Reversing, Sorting
from headwaiter_export.zoo.data.scenes import SceneCaptions, Scenes
from headwaiter_export.zoo.registry import Architecture

DATASETS: tuple[type[Dataset], ...] = (
    Reversing,
    Sorting,
    Dates,
    Copying,
    ListOps,
    Digits,
    DistilledDigits,
    DrawnDigits,
    Fashion,
    Scenes,
    SceneCaptions,
    CartPole,
    MaskedCartPole,
)


def compatible_datasets(architecture: Architecture) -> dict[str, type[Dataset]]:
    """Datasets that an architecture can be trained on, by name."""
    return {data.name: data for data in DATASETS if issubclass(architecture.model, data.compatible_models)}


def with_dataset(architecture: Architecture, requested: str) -> Architecture:
    """Return the architecture with another dataset in its recipe, without the recipe's target. Raises `SourceError` if
    the dataset is unknown or incompatible or an option is invalid."""
    name, _, options = requested.partition(":")
    choices = compatible_datasets(architecture)
    if name not in choices:
        raise SourceError(
            f"{architecture.name} cannot be trained on {name!r}; compatible datasets: {', '.join(choices)}."
        )
    data, recipe = choices[name], architecture.recipe
    merged = {**(recipe.options if data is recipe.data else {}), **_read(data, options)}
    is_unchanged = data is recipe.data and merged == recipe.options
    return replace(
        architecture, recipe=replace(recipe, data=data, options=merged, target=recipe.target if is_unchanged else None)
    )


def _read(data: type[Dataset], options: str) -> dict[str, Any]:
    parameters = inspect.signature(data).parameters
    values: dict[str, Any] = {}
    for option in options.split(",") if options else ():
        name, _, value = option.partition("=")
        if name not in parameters:
            available = f"available: {', '.join(parameters)}" if parameters else "it has no options"
            raise SourceError(f"{data.name} has no option {name!r}; {available}.")
        option_type = type(parameters[name].default)
        try:
            values[name] = option_type(value)
        except ValueError:
            raise SourceError(
                f"{name} of {data.name} is {value!r}; it must be a number, for example {name}=8."
            ) from None
        if values[name] <= 0:
            raise SourceError(f"{name} of {data.name} is {value}; it must be greater than 0.")
    return values
