"""Adds the bounds that the tasks enforce for a model to the schemas of its requests.

Tasks remain the only place that rejects values beyond a bound; tests compare both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from headwaiter.tasks.decoding import DecodingLimits, valid_ranges
from headwaiter.tasks.policy import MAX_NUMBER
from headwaiter.v1.models_pb2 import DescribeResponse

Keywords = dict[str, float]  # of JSON Schema, such as {"minimum": 1}
Schema = dict[str, Any]

_TYPES = {
    "minimum": ("integer", "number"),
    "exclusiveMinimum": ("integer", "number"),
    "maximum": ("integer", "number"),
    "maxLength": ("string",),
    "minItems": ("array",),
    "maxItems": ("array",),
}
_AT_LEAST_ONE: Keywords = {"minimum": 1}
_FRACTION: Keywords = {"minimum": 0, "maximum": 1}
_SEED: Keywords = {"minimum": 0}
_FLOAT32: Keywords = {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}


def with_bounds(schemas: Mapping[str, Schema], description: DescribeResponse) -> dict[str, Schema]:
    """The schemas with the bounds of the described model; those of other messages are unchanged."""
    bounds = _bounds(description)
    return {name: _with_bounds(schema, bounds.get(name, {})) for name, schema in schemas.items()}


def _bounds(description: DescribeResponse) -> dict[str, dict[str, Keywords]]:
    """Bounds by message and field."""
    limits = dict(description.limits)
    inputs = _keywords(maxItems=limits.get("inputs"))
    text = _keywords(maxLength=limits.get("text"))
    state = _keywords(minItems=_size(description, "state_size"), maxItems=_size(description, "state_size"))
    action_size = _size(description, "action_size")
    return {
        "TranslateRequest": {"text": text | inputs},
        "CaptionRequest": {"image": inputs, "prompt": text},
        "GenerateRequest": {"prompt": text | inputs},
        "ClassifyRequest": {
            "text": text | inputs,
            "text_pair": inputs,
            "image": inputs,
            "top_k": _AT_LEAST_ONE,
            "threshold": _FRACTION,
        },
        "TextPair": {"first": text, "second": text},
        "DetectRequest": {"image": inputs, "threshold": _FRACTION, "max_boxes": _AT_LEAST_ONE},
        "GenerateImagesRequest": {"count": {"minimum": 1, **_keywords(maximum=limits.get("images"))}, "seed": _SEED},
        "ActRequest": {"history": inputs, "seed": _SEED},
        "History": {
            "steps": {"minItems": 1, **_keywords(maxItems=limits.get("timesteps"))},
            "target_return": _FLOAT32,
        },
        "Step": {"state": state, "reward": _FLOAT32},
        "Action": {
            "discrete": {"minimum": 0, **_keywords(maximum=action_size - 1 if action_size else None)},
            "continuous": _keywords(minItems=action_size, maxItems=action_size),
        },
        "Decoding": _decoding_bounds(limits),
    }


def _decoding_bounds(limits: Mapping[str, int]) -> dict[str, Keywords]:
    names = [field.name for field in fields(DecodingLimits)]
    if not set(names) <= limits.keys():
        return {}
    return valid_ranges(DecodingLimits(**{name: limits[name] for name in names}))


def _size(description: DescribeResponse, field: str) -> int | None:
    return getattr(description, field) if description.HasField(field) else None


def _keywords(**keywords: float | None) -> Keywords:
    return {name: value for name, value in keywords.items() if value is not None}


def _with_bounds(schema: Schema, bounds: Mapping[str, Keywords]) -> Schema:
    if not bounds:
        return schema
    properties = {name: _bounded(field, bounds.get(name, {})) for name, field in schema["properties"].items()}
    return {**schema, "properties": properties}


def _bounded(schema: Schema, keywords: Keywords) -> Schema:
    """Add each keyword to the parts of the schema that have its type."""
    own = {name: value for name, value in keywords.items() if schema.get("type") in _TYPES[name]}
    bounded = {**schema, **own}
    if "exclusiveMinimum" in own:
        bounded.pop("minimum", None)
    for name in ("anyOf", "oneOf"):
        if name in schema:
            bounded[name] = [_bounded(part, keywords) for part in schema[name]]
    if "items" in schema:
        bounded["items"] = _bounded(schema["items"], keywords)
    return bounded
