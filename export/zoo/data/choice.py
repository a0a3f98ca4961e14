"""Other data than a recipe has: `sorting`, or `listops:length=16` with options."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from export.errors import SourceError
from export.zoo.data.base import Data
from export.zoo.data.blind_cartpole import BlindCartPole
from export.zoo.data.cartpole import CartPole
from export.zoo.data.copying import Copying
from export.zoo.data.dates import Dates
from export.zoo.data.digits import Digits
from export.zoo.data.drawn_digits import DrawnDigits
from export.zoo.data.fashion import Fashion
from export.zoo.data.listops import ListOps
from export.zoo.data.reversing import Reversing, Sorting
from export.zoo.data.scenes import SceneCaptions, Scenes
from export.zoo.data.taught import TaughtDigits
from export.zoo.registry import System

KNOWN: tuple[type[Data], ...] = (
    Reversing,
    Sorting,
    Dates,
    Copying,
    ListOps,
    Digits,
    TaughtDigits,
    DrawnDigits,
    Fashion,
    Scenes,
    SceneCaptions,
    CartPole,
    BlindCartPole,
)


def suited(system: System) -> dict[str, type[Data]]:
    """What a system can learn from, by name."""
    return {data.name: data for data in KNOWN if issubclass(system.model, data.learners)}


def learning_from(system: System, wanted: str) -> System:
    """The same system with other data in its recipe. The bar is for the recipe as it was and goes."""
    name, _, options = wanted.partition(":")
    choices = suited(system)
    if name not in choices:
        raise SourceError(f"{system.name} cannot learn from {name!r}; it can from {', '.join(choices)}.")
    data, own = choices[name], system.recipe
    read = {**(own.options if data is own.data else {}), **_read(data, options)}
    is_own = data is own.data and read == own.options
    return replace(system, recipe=replace(own, data=data, options=read, bar=own.bar if is_own else None))


def _read(data: type[Data], options: str) -> dict[str, Any]:
    known = inspect.signature(data).parameters
    read: dict[str, Any] = {}
    for option in options.split(",") if options else ():
        name, _, value = option.partition("=")
        if name not in known:
            offered = f"it has {', '.join(known)}" if known else "it has none"
            raise SourceError(f"{data.name} has no option {name!r}; {offered}.")
        kind = type(known[name].default)
        try:
            read[name] = kind(value)
        except ValueError:
            raise SourceError(f"{name} of {data.name} is {value!r}; it has to be a number, as in {name}=8.") from None
        if read[name] <= 0:
            raise SourceError(f"{name} of {data.name} is {value}; it has to be greater than 0.")
    return read
