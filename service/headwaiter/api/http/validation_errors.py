"""Converts pydantic validation errors to one-sentence input errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor
from pydantic import ValidationError
from pydantic_core import to_json

from headwaiter.api.http.fields import fields_at_path, inputs_field, oneof_fields
from headwaiter.api.http.schema import MANY, ONE
from headwaiter.tasks.errors import InputError, check_inputs, shorten

_EXPECTED = {
    "string_type": "text",
    "string_unicode": "valid Unicode text",
    "base64_type": "base64 text",
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "dict_type": "an object",
}
_MAX_SHOWN_CHARS = 40


def check_structure(content: Any, request: Descriptor) -> None:
    """Reject unknown fields and too many inputs before the body is validated, whose cost per error is much higher."""
    path = _find_unknown_field(content, request, [])
    if path is not None:
        raise _unknown_field(request, path)
    inputs = inputs_field(request)
    if inputs is None or not isinstance(content, dict):
        return
    for name in [field.name for field in oneof_fields(inputs.message_type)] or [inputs.name]:
        if isinstance(content.get(name), list) and content[name]:
            check_inputs(content[name], name)


def _find_unknown_field(content: Any, request: Descriptor, path: list[Any]) -> list[Any] | None:
    """Return the path of the first unknown field, or None."""
    if isinstance(content, dict):
        known = fields_at_path(request, [part for part in path if isinstance(part, str)])
        if known is None:
            return None  # the value must not be an object
        unknown = next((name for name in content if name not in known), None)
        if unknown is not None:
            return [*path, unknown]
        items: Iterable[tuple[Any, Any]] = content.items()
    else:
        items = enumerate(content)
    for part, value in items:
        if isinstance(value, dict | list) and (found := _find_unknown_field(value, request, [*path, part])):
            return found
    return None


def _unknown_field(request: Descriptor, path: list[Any]) -> InputError:
    field = _field_path(path)
    return InputError(f"{field} is not a known field; {_suggest_field(request, path)}", field=field)


def to_input_error(error: ValidationError, request: Descriptor) -> InputError:
    """Report the first error, unknown fields before others, because they often explain a missing one."""
    details = min(error.errors(include_url=False), key=lambda item: item["type"] != "extra_forbidden")
    path = [part for part in details["loc"] if part not in (ONE, MANY)]
    error_type, context, field = details["type"], details.get("ctx", {}), _field_path(path)
    if error_type == "extra_forbidden":
        return _unknown_field(request, path)
    if error_type == "missing":
        names = context.get("names", [field])
        return InputError(f"{_join_names(names)} is missing", field=names[0])
    if error_type == "too_short":
        return InputError(f"{field} is empty; at least one input is required", field=field, limit=1)
    if error_type in _EXPECTED:
        expected, limit = _EXPECTED[error_type].format(**context), context.get("ge", context.get("le"))
        message = f"{field or 'the body'} is {_format_value(details['input'])}; it must be {expected}"
        return InputError(message, field=field, limit=limit)
    return InputError(f"{field or 'the body'} {details['msg']}", field=field)


def _field_path(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{shorten(part)}"
    return text.removeprefix(".")


def _suggest_field(request: Descriptor, path: list[Any]) -> str:
    *parents, name = (part for part in path if isinstance(part, str))
    fields = list(fields_at_path(request, parents) or {})
    if not fields:
        return "no fields are allowed here"
    matches = difflib.get_close_matches(name[:_MAX_SHOWN_CHARS], fields, n=1)
    return f"did you mean {matches[0]}?" if matches else f"known fields: {', '.join(fields)}"


def _format_value(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "a list"
        case bytes():
            return "a file"
        case str() if len(value) > _MAX_SHOWN_CHARS:
            return "text"
        case _:
            return shorten(to_json(value, inf_nan_mode="constants").decode())


def _join_names(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
