"""Validation errors of settings as one clause: the key, what is wrong with it, what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from headwaiter.engine.settings import ModelSettings

_EXPECTED = {
    "greater_than_equal": "at least {ge:g}",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "at most {le:g}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "string_pattern_mismatch": "a whole number",
    "literal_error": "{expected}",
    "model_type": "a mapping",
    "dict_type": "a mapping",
}
_NOTHING: Mapping[str, str] = {}


def nested_section(field: FieldInfo) -> type[BaseModel] | None:
    """The section below a field: of the field itself, or of each value if the field is a mapping."""
    types = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in types if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


class SettingsError(ValueError):
    """A setting is unknown or invalid; the message names it and what would be right."""


def parse_settings(values: Mapping[str, Any]) -> ModelSettings:
    """Validate the settings of a model. Raises SettingsError."""
    try:
        return ModelSettings.model_validate(dict(values))
    except ValidationError as error:
        raise SettingsError(format_error(error, ModelSettings)) from None


def format_error(
    validation: ValidationError,
    schema: type[BaseModel],
    *,
    unknown_key_hints: Mapping[str, str] = _NOTHING,
    expected_values: Mapping[str, str] = _NOTHING,
) -> str:
    """Describe the first error in one clause. Unknown keys come first: a misspelt key also causes a missing one.

    `unknown_key_hints` and `expected_values` are texts for single keys, by their path such as `http.host`.
    """
    error = min(validation.errors(), key=lambda error: error["type"] != "extra_forbidden")
    path = tuple(str(step) for step in error["loc"])
    key, kind, context = ".".join(path), error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{key} is not a valid key; {unknown_key_hints.get(key) or _suggest_key(path, schema)}"
    if kind == "missing":
        return f"{key} is missing"
    if kind == "value_error":
        return f"{key} {context['error']}".strip()
    if path[-1] == "[key]":
        return f"{'.'.join(path[:-1])} is not a string; put the key in quotes"
    template = expected_values.get(key) or _EXPECTED.get(kind)
    if template is None:
        return f"{key}: {error['msg']}"
    expected = template.format(**context).replace("'", "")
    return f"{key} is {format_value(error['input'])}; it must be {expected}"


def _suggest_key(path: tuple[str, ...], schema: type[BaseModel]) -> str:
    *parents, key = path
    known = list(_find_section(parents, schema).model_fields)
    matches = difflib.get_close_matches(key, known, n=1)
    return f"the closest valid key is {matches[0]}" if matches else f"valid keys are {', '.join(known)}"


def _find_section(path: Sequence[str], schema: type[BaseModel]) -> type[BaseModel]:
    section = schema
    names = iter(path)
    for name in names:
        field = section.model_fields[name]
        section = nested_section(field) or section
        if get_origin(field.annotation) is dict:
            next(names, None)  # the key within the mapping, such as the name of a model
    return section


def format_value(value: Any) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return str(value).lower()
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str() if value.isdecimal():
            return f'the string "{value}"'
        case _:
            return str(value)
