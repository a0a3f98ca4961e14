"""What the .proto files say about messages, fields and methods: generated stubs have no comments."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

_PACKAGE = "headwaiter.v1"
_OPENS = re.compile(r"(message|service|oneof|enum)\s+(\w+)\s*\{")
_METHOD = re.compile(r"rpc\s+(\w+)\s*\(")
_FIELD = re.compile(r"(?:optional\s+|repeated\s+)?[\w.]+(?:<[\w., ]+>)?\s+(\w+)\s*=\s*\d+")


@cache
def comments() -> dict[str, str]:
    """By full name, such as headwaiter.v1.Decoding.beams."""
    found: dict[str, str] = {}
    for file in files(_PACKAGE).iterdir():
        if file.name.endswith(".proto"):
            found |= _commented(file.read_text(encoding="utf-8").splitlines())
    return found


def comment(full_name: str) -> str:
    return comments().get(full_name, "")


def _commented(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    inside: list[str] = []
    said: list[str] = []
    for line in map(str.strip, lines):
        if line.startswith("//"):
            said.append(line.removeprefix("//").strip())
            continue
        opened, named = _OPENS.match(line), _METHOD.match(line) or _FIELD.match(line)
        name = opened[2] if opened else named[1] if named else None
        if name and said:
            yield ".".join([_PACKAGE, *filter(None, inside), name]), " ".join(said)
        if opened and not line.endswith("}"):
            # The fields of a choice belong to the message around it.
            inside.append("" if opened[1] == "oneof" else opened[2])
        elif line == "}":
            inside.pop()
        said = []
