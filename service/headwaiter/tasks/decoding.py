"""Resolves the decoding options of a request against the model's defaults and the configured limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from headwaiter.engine.sampling import Sampling
from headwaiter.engine.sequence import DecodingParameters
from headwaiter.package.manifest import DecodingDefaults
from headwaiter.tasks.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingOptions:
    """Decoding parameters of a request. None selects the model's default."""

    max_new_tokens: int | None = None
    num_beams: int | None = None
    num_return_sequences: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None


@dataclass(frozen=True, slots=True)
class DecodingLimits:
    """Maximum values that a request may set."""

    new_tokens: int
    num_beams: int = 8
    num_return_sequences: int = 16


_MINIMUM = {
    "max_new_tokens": 1,
    "num_beams": 1,
    "num_return_sequences": 1,
    "top_k": 0,
    "seed": 0,
    "no_repeat_ngram_size": 0,
}
_EXCLUSIVE_MINIMUM = {"top_p": 0.0}
_RANGE = {  # powers and quotients of floats overflow outside of these ranges
    "length_penalty": (-10.0, 10.0),
    "repetition_penalty": (0.01, 100.0),
    "temperature": (0.001, 1000.0),
}


def valid_ranges(decoding_limits: DecodingLimits) -> dict[str, dict[str, float]]:
    """The range of each number that `resolve` accepts, as keywords of JSON Schema."""
    ranges: dict[str, dict[str, float]] = {
        name: {"minimum": low, "maximum": high} for name, (low, high) in _RANGE.items()
    }
    tables = (("minimum", _MINIMUM), ("exclusiveMinimum", _EXCLUSIVE_MINIMUM), ("maximum", _maxima(decoding_limits)))
    for keyword, table in tables:
        for name, bound in table.items():
            ranges.setdefault(name, {})[keyword] = bound
    return ranges


def resolve(
    options: DecodingOptions, defaults: DecodingDefaults, decoding_limits: DecodingLimits
) -> list[DecodingParameters]:
    """Return the parameters of each sequence to decode; sampling decodes `num_return_sequences` separate sequences.

    Default values above a limit are clamped; explicit ones raise `InputError`.
    """
    explicit = {
        field.name: value for field in fields(DecodingOptions) if (value := getattr(options, field.name)) is not None
    }
    for name, option in explicit.items():
        _check(name, option, decoding_limits)
    value = defaults.model_dump()
    value |= {"num_return_sequences": 1, "seed": None, "num_beams": min(defaults.num_beams, decoding_limits.num_beams)}
    value |= explicit
    if value["do_sample"]:
        if explicit.get("num_beams", 1) > 1:
            raise InputError(
                f"decoding.num_beams is {explicit['num_beams']}; with decoding.do_sample it must be 1",
                field="decoding.num_beams",
                limit=1,
            )
        value["num_beams"] = 1
    elif value["num_return_sequences"] > value["num_beams"]:
        maximum = value["num_beams"]
        raise InputError(
            f"decoding.num_return_sequences is {value['num_return_sequences']}; without decoding.do_sample it must be "
            f"at most {maximum} (decoding.num_beams)",
            field="decoding.num_return_sequences",
            limit=maximum,
        )
    params = DecodingParameters(
        max_new_tokens=min(value["max_new_tokens"], decoding_limits.new_tokens),
        eos_token_ids=frozenset(defaults.eos_token_ids),
        num_beams=value["num_beams"],
        num_return_sequences=1 if value["do_sample"] else value["num_return_sequences"],
        length_penalty=value["length_penalty"],
        early_stopping=value["early_stopping"],
        sampling=Sampling(value["temperature"], value["top_k"], value["top_p"]) if value["do_sample"] else None,
        repetition_penalty=value["repetition_penalty"],
        no_repeat_ngram_size=value["no_repeat_ngram_size"],
        suppress_tokens=defaults.suppress_tokens,
        forced_bos_token_id=defaults.forced_bos_token_id,
        forced_eos_token_id=defaults.forced_eos_token_id,
    )
    if not value["do_sample"]:
        return [params]
    seeds = [
        None if value["seed"] is None else (value["seed"], index) for index in range(value["num_return_sequences"])
    ]
    return [replace(params, seed=seed) for seed in seeds]


def _maxima(decoding_limits: DecodingLimits) -> dict[str, float]:
    return {
        "num_beams": decoding_limits.num_beams,
        "num_return_sequences": decoding_limits.num_return_sequences,
        "max_new_tokens": decoding_limits.new_tokens,
        "top_p": 1.0,
    }


def _check(name: str, value: float, decoding_limits: DecodingLimits) -> None:
    field, maximum = f"decoding.{name}", _maxima(decoding_limits)
    if not math.isfinite(value):
        raise InputError(f"{field} is {value}; it must be a finite number", field=field)
    if name in _MINIMUM and value < _MINIMUM[name]:
        raise InputError(f"{field} is {value}; it must be at least {_MINIMUM[name]}", field=field, limit=_MINIMUM[name])
    if name in _EXCLUSIVE_MINIMUM and value <= _EXCLUSIVE_MINIMUM[name]:
        raise InputError(
            f"{field} is {value}; it must be greater than {_EXCLUSIVE_MINIMUM[name]:g}",
            field=field,
            limit=_EXCLUSIVE_MINIMUM[name],
        )
    if name in _RANGE and not _RANGE[name][0] <= value <= _RANGE[name][1]:
        low, high = _RANGE[name]
        raise InputError(
            f"{field} is {value:g}; it must be from {low:g} to {high:g}",
            field=field,
            limit=low if value < low else high,
        )
    if name in maximum and value > maximum[name]:
        raise InputError(f"{field} is {value:,}; the limit is {maximum[name]:,}", field=field, limit=maximum[name])
