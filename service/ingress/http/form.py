"""Forms (multipart/form-data): images as files, everything else as text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic_core import from_json
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from service.ingress.http.fields import alternatives, fields_at, inputs_of
from service.tasks.errors import InputError

_MOST_PARTS = 1024
_DISPOSITION = b"content-disposition"


@dataclass(slots=True)
class Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    name: str = ""
    is_file: bool = False


class Form:
    """Parts as they arrive."""

    def __init__(self, boundary: bytes) -> None:
        self.parts: list[Part] = []
        self.is_whole = False
        self._name, self._value = bytearray(), bytearray()
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": lambda data, start, end: self.parts[-1].data.extend(data[start:end]),
                "on_end": self._end,
            },
        )

    def write(self, chunk: bytes) -> None:
        self._parser.write(chunk)

    def _begin(self) -> None:
        if len(self.parts) == _MOST_PARTS:
            raise InputError(f"the form has more than {_MOST_PARTS:,} parts", field="", limit=_MOST_PARTS)
        self.parts.append(Part())

    def _end_header(self) -> None:
        self.parts[-1].headers[bytes(self._name).lower()] = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        part = self.parts[-1]
        _, options = parse_options_header(part.headers.get(_DISPOSITION))
        if b"name" not in options:
            raise FormParserError("a part has no name")
        part.name, part.is_file = _text(options[b"name"], "a part's name"), b"filename" in options

    def _end(self) -> None:
        self.is_whole = True


async def read_form(content_type: str, chunks: AsyncGenerator[bytes, None]) -> list[Part]:
    _, options = parse_options_header(content_type)
    try:
        form = Form(options.get(b"boundary", b""))
        async for chunk in chunks:
            form.write(chunk)
    except FormParserError as error:
        raise InputError(f"the form cannot be read: {error}", field="") from None
    if not form.is_whole:
        raise InputError("the form cannot be read: its end is missing", field="")
    return form.parts


def content_of(parts: list[Part], request: Descriptor) -> dict[str, Any]:
    """What the same would be as JSON, with bytes in place of base64: objects from dotted names, such as
    `decoding.beams`, and lists of what there may be several of."""
    inputs = inputs_of(request)
    several = alternatives(inputs.message_type) or (inputs,) if inputs is not None else ()
    many = {each.name for each in several}
    content: dict[str, Any] = {}
    for part in sorted(parts, key=lambda each: each.name.count(".")):
        *parents, leaf = part.name.split(".")
        value = _value(part, (fields_at(request, parents) or {}).get(leaf))
        place: Any = content
        for parent in parents:
            place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise InputError(f"{part.name} is not a field", field=part.name)
        if part.name in many:
            place.setdefault(leaf, []).append(value)
        elif leaf in place:
            raise InputError(f"{part.name} is there twice", field=part.name)
        else:
            place[leaf] = value
    return content


def _value(part: Part, known: FieldDescriptor | None) -> Any:
    """Numbers, truths and objects are written as in JSON; what is not is left for the check to refuse."""
    if part.is_file:
        return bytes(part.data)
    text = _text(part.data, part.name)
    is_plain = known is None or known.type == FieldDescriptor.TYPE_STRING
    if is_plain or (known is not None and known.message_type is not None and known.message_type.name == "Image"):
        return text
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def _text(data: bytes | bytearray, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{name} is not text in UTF-8", field=name) from None
