"""Compares the bounds that an OpenAPI document states with those that the server enforces."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.http_kit import error_of, post

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    path: Path
    keyword: str
    value: float
    is_integer: bool = False

    def at(self, current: Any) -> Any:
        """A value at the bound; lists and texts repeat their current first element."""
        match self.keyword:
            case "exclusiveMinimum":
                return math.nextafter(self.value, math.inf)
            case "minimum" | "maximum":
                return self.value
            case _:
                return _resized(current, int(self.value))

    def beyond(self, current: Any) -> Any:
        """A value one step outside of the bound."""
        match self.keyword:
            case "exclusiveMinimum":
                return self.value
            case "minimum":
                return self.value - 1 if self.is_integer else math.nextafter(self.value, -math.inf)
            case "maximum":
                return self.value + 1 if self.is_integer else math.nextafter(self.value, math.inf)
            case "minItems":
                return _resized(current, int(self.value) - 1)
            case _:
                return _resized(current, int(self.value) + 1)


def stated_bounds(spec: dict[str, Any], schema: dict[str, Any]) -> list[Bound]:
    """All bounds of a schema, by the path of their field; lists by their first element."""
    return [
        Bound(path, keyword, part[keyword], part["type"] == "integer")
        for path, part in _parts(spec, schema, ())
        for keyword in ("minimum", "exclusiveMinimum", "maximum", "maxLength", "minItems", "maxItems")
        if keyword in part
    ]


def unbounded_numbers(spec: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    """The names of number fields that lack a minimum or a maximum."""
    bounds = stated_bounds(spec, schema)
    lower = {bound.path for bound in bounds if bound.keyword in ("minimum", "exclusiveMinimum")}
    upper = {bound.path for bound in bounds if bound.keyword == "maximum"}
    numbers = {path for path, part in _parts(spec, schema, ()) if part.get("type") in ("integer", "number")}
    return {".".join(part for part in path if isinstance(part, str)) for path in numbers - (lower & upper)}


def _parts(spec: dict[str, Any], schema: dict[str, Any], path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    if "$ref" in schema:
        schema = spec["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    yield path, schema
    for alternative in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "required" not in alternative:
            yield from _parts(spec, alternative, path)
    if "items" in schema:
        yield from _parts(spec, schema["items"], (*path, 0))
    for name, field in schema.get("properties", {}).items():
        yield from _parts(spec, field, (*path, name))


def check_bound(url: str, body: dict[str, Any], bound: Bound) -> bool:
    """Check that a request at the bound is answered and that one beyond it is rejected.

    Returns False if the body does not have the bounded field in this form, such as a list instead of a text.
    """
    body = copy.deepcopy(body)
    if bound.path[0] == "decoding":  # several sequences need sampling, several beams exclude it
        body["decoding"] = {"do_sample": bound.path[-1] != "num_beams"}
    container = _container(body, bound)
    if container is None:
        return False
    last: Any = bound.path[-1]
    current = container[last] if isinstance(container, list) else container.get(last)
    container[last] = bound.at(current)
    accepted = post(url, json=body)
    is_accepted = accepted.status_code == 200 or "output for it is not finite" in accepted.text
    assert is_accepted, (bound, accepted.text)
    container[last] = bound.beyond(current)
    rejected = post(url, json=body)
    assert rejected.status_code == 400, (bound, rejected.text)
    assert str(bound.path[0]) in error_of(rejected)["field"]
    return True


def _container(body: dict[str, Any], bound: Bound) -> Any:
    """The object or list of the body that has the bounded field, or None."""
    *parents, last = bound.path
    place: Any = body
    for part in parents:
        if not _has(place, part):
            return None
        place = place[part]
    if bound.keyword in ("minimum", "exclusiveMinimum", "maximum"):  # numbers that are not set have a default
        return place if _has(place, last) or (isinstance(place, dict) and isinstance(last, str)) else None
    expected = str if bound.keyword == "maxLength" else list
    return place if _has(place, last) and isinstance(place[last], expected) else None


def _has(place: Any, part: str | int) -> bool:
    return isinstance(part, int) if isinstance(place, list) else isinstance(place, dict) and part in place


def _resized(current: Any, size: int) -> Any:
    """The text or list with another length, made of its first element."""
    return current[:1] * size
