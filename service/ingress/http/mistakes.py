"""One sentence for whatever is wrong with a body."""

from __future__ import annotations

import difflib
from typing import Any

from google.protobuf.descriptor import Descriptor
from pydantic import ValidationError
from pydantic_core import to_json

from service.ingress.http.fields import fields_at
from service.ingress.http.schema import MANY, ONE
from service.tasks.errors import InputError

_WANTED = {
    "string_type": "text",
    "string_unicode": "text of whole characters",
    "base64_type": "base64 text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "dict_type": "an object",
}
_SHORT = 40


def mistake(error: ValidationError, request: Descriptor) -> InputError:
    """About the first one; an unknown field comes first, since it is often why another one is missing."""
    found = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    steps = [step for step in found["loc"] if step not in (ONE, MANY)]
    kind, context, place = found["type"], found.get("ctx", {}), _place(steps)
    if kind == "extra_forbidden":
        return InputError(f"{place} is not a field; {_nearest(request, steps)}", field=place)
    if kind == "missing":
        names = context.get("names", [place])
        return InputError(f"{_listed(names)} is missing", field=names[0])
    if kind == "too_short":
        return InputError(f"{place} is empty; it needs at least one", field=place, limit=1)
    if kind in _WANTED:
        wanted, limit = _WANTED[kind].format(**context), context.get("ge", context.get("le"))
        sentence = f"{place or 'the body'} is {_shown(found['input'])}; it must be {wanted}"
        return InputError(sentence, field=place, limit=limit)
    return InputError(f"{place or 'the body'} {found['msg']}", field=place)


def _place(steps: list[Any]) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{_cut(step)}"
    return path.removeprefix(".")


def _nearest(request: Descriptor, steps: list[Any]) -> str:
    *parents, name = (step for step in steps if isinstance(step, str))
    known = list(fields_at(request, parents) or {})
    if not known:
        return "there are none here"
    near = difflib.get_close_matches(name[:_SHORT], known, n=1)
    return f"{near[0]} is" if near else f"there {'is' if len(known) == 1 else 'are'} {', '.join(known)}"


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case dict():
            return "an object"
        case list():
            return "a list"
        case bytes():
            return "a file"
        case str() if len(value) > _SHORT:
            return "text"
        case _:
            return _cut(to_json(value, inf_nan_mode="constants").decode())


def _listed(names: list[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def _cut(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"
