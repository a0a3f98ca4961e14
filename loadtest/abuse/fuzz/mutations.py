"""Random changes of bytes and of JSON values."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

JsonValue = Any

_MAX_CHANGES = 4
_VARINTS = (b"\xff" * 9 + b"\x01", b"\xff" * 12, b"\x80" * 5, b"\x00", b"\x0a\xff\xff\xff\xff\x0f")
_SCALARS: tuple[JsonValue, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 1.5, 1e39, -0.0),
    *("", "a", "\x00", "\ud7ff\uffff", "🌻" * 30, "a" * 3000, "1", "true", "data:;base64,AAAA", "////", "="),
)


def mutate_bytes(source: random.Random, content: bytes) -> bytes:
    """Apply one to four random changes: bits, cuts, insertions, repetitions."""
    changed = bytearray(content)
    for _ in range(source.randint(1, _MAX_CHANGES)):
        source.choice(_BYTE_CHANGES)(source, changed)
    return bytes(changed)


def _flip_bit(source: random.Random, content: bytearray) -> None:
    if content:
        content[source.randrange(len(content))] ^= 1 << source.randrange(8)


def _cut_end(source: random.Random, content: bytearray) -> None:
    del content[source.randint(0, len(content)) :]


def _cut_part(source: random.Random, content: bytearray) -> None:
    start = source.randint(0, len(content))
    del content[start : start + source.randint(1, 8)]


def _insert(source: random.Random, content: bytearray) -> None:
    position = source.randint(0, len(content))
    content[position:position] = source.choice((*_VARINTS, source.randbytes(source.randint(1, 8))))


def _repeat_part(source: random.Random, content: bytearray) -> None:
    start = source.randint(0, len(content))
    content[start:start] = content[start : start + source.randint(1, 200)] * source.randint(1, 3)


_BYTE_CHANGES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *(_flip_bit, _flip_bit, _cut_end, _cut_part, _insert, _repeat_part),
)


def mutate_json(source: random.Random, value: JsonValue) -> JsonValue:
    """Return the value with one random part replaced, removed, renamed, repeated or nested."""
    if isinstance(value, dict) and value and source.random() < 0.8:
        return _mutate_object(source, value)
    if isinstance(value, list) and value and source.random() < 0.8:
        index = source.randrange(len(value))
        return [*value[:index], mutate_json(source, value[index]), *value[index + 1 :]]
    return random_json(source, value)


def _mutate_object(source: random.Random, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    name = source.choice(list(value))
    rest = {key: item for key, item in value.items() if key != name}
    match source.randrange(5):
        case 0:
            return rest
        case 1:
            return {**value, source.choice((name.upper(), f"{name}s", "", "$ref", "__proto__", "a" * 500)): value[name]}
        case 2:
            return {**value, name: random_json(source, value[name])}
        case _:
            return {**value, name: mutate_json(source, value[name])}


def random_json(source: random.Random, original: JsonValue = None) -> JsonValue:
    """A value of another kind than the original one is likely."""
    match source.randrange(6):
        case 0:
            return [original] * source.randint(0, 5)
        case 1:
            return {"value": original}
        case 2:
            return _nested(source.choice((3, 40, 300)))
        case _:
            return source.choice(_SCALARS)


def _nested(depth: int) -> JsonValue:
    value: JsonValue = []
    for _ in range(depth):
        value = [value]
    return value
