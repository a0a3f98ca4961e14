"""How a request wants its tokens chosen: every field optional, the model's own defaults otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from service.engine.sampling import Sampling
from service.engine.sequence import Choosing
from service.package import Decoding as Defaults
from service.tasks.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    max_new_tokens: int | None = None
    beams: int | None = None
    best: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a request may ask for."""

    new_tokens: int
    beams: int = 8
    best: int = 16


_AT_LEAST = {"max_new_tokens": 1, "beams": 1, "best": 1, "top_k": 0, "seed": 0, "no_repeat_ngram_size": 0}
_ABOVE = {"top_p": 0.0}
_BETWEEN = {  # beyond these, powers and quotients of floats overflow
    "length_penalty": (-10.0, 10.0),
    "repetition_penalty": (0.01, 100.0),
    "temperature": (0.001, 1000.0),
}


def settle(wanted: Decoding, defaults: Defaults, bounds: Bounds) -> list[Choosing]:
    """One way of choosing for each sequence to be decoded: several only where several are drawn."""
    stated = {f.name: getattr(wanted, f.name) for f in fields(Decoding) if getattr(wanted, f.name) is not None}
    for name, given in stated.items():
        _check(name, given, bounds)
    own = defaults.model_dump()
    value = own | {"best": 1, "seed": None, "beams": min(own["beams"], bounds.beams)} | stated
    if value["sample"]:
        if stated.get("beams", 1) > 1:
            raise InputError(
                f"decoding.beams is {stated['beams']}; with decoding.sample it is 1", field="decoding.beams", limit=1
            )
        value["beams"] = 1
    elif value["best"] > value["beams"]:
        most = value["beams"]
        raise InputError(
            f"decoding.best is {value['best']}; without decoding.sample it is at most {most}",
            field="decoding.best",
            limit=most,
        )
    choosing = Choosing(
        max_new_tokens=min(value["max_new_tokens"], bounds.new_tokens),
        stop=frozenset(defaults.stop),
        beams=value["beams"],
        best=1 if value["sample"] else value["best"],
        length_penalty=value["length_penalty"],
        early_stopping=value["early_stopping"],
        sampling=Sampling(value["temperature"], value["top_k"], value["top_p"]) if value["sample"] else None,
        repetition_penalty=value["repetition_penalty"],
        no_repeat_ngram_size=value["no_repeat_ngram_size"],
        never=defaults.never,
        forced_first=defaults.forced_first,
        forced_last=defaults.forced_last,
    )
    if not value["sample"]:
        return [choosing]
    seeds = [None if value["seed"] is None else (value["seed"], index) for index in range(value["best"])]
    return [replace(choosing, seed=seed) for seed in seeds]


def _check(name: str, given: float, bounds: Bounds) -> None:
    field = f"decoding.{name}"
    most = {"beams": bounds.beams, "best": bounds.best, "max_new_tokens": bounds.new_tokens, "top_p": 1.0}
    if not math.isfinite(given):
        raise InputError(f"{field} is {given}; it has to be a number", field=field)
    if name in _AT_LEAST and given < _AT_LEAST[name]:
        raise InputError(
            f"{field} is {given}; it has to be at least {_AT_LEAST[name]}", field=field, limit=_AT_LEAST[name]
        )
    if name in _ABOVE and given <= _ABOVE[name]:
        raise InputError(f"{field} is {given}; it has to be above {_ABOVE[name]:g}", field=field, limit=_ABOVE[name])
    if name in _BETWEEN and not _BETWEEN[name][0] <= given <= _BETWEEN[name][1]:
        least, top = _BETWEEN[name]
        raise InputError(
            f"{field} is {given:g}; it has to be from {least:g} to {top:g}",
            field=field,
            limit=least if given < least else top,
        )
    if name in most and given > most[name]:
        raise InputError(f"{field} is {given:,}; the limit is {most[name]:,}", field=field, limit=most[name])
