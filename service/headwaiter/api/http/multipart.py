"""Reads multipart/form-data bodies: images are files, all other fields are text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic_core import from_json
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from headwaiter.api.http.fields import fields_at_path, inputs_field, oneof_fields
from headwaiter.tasks.errors import InputError, shorten

_MAX_PARTS = 1024
_MAX_NAME_CHARS = 200  # longer than every path of a field
_DISPOSITION = b"content-disposition"


@dataclass(slots=True)
class Part:
    headers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    name: str = ""
    is_file: bool = False


class MultipartReader:
    """Parses a form incrementally into parts."""

    def __init__(self, boundary: bytes) -> None:
        self.parts: list[Part] = []
        self.is_complete = False
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
        if len(self.parts) == _MAX_PARTS:
            raise InputError(f"the form has too many parts; the limit is {_MAX_PARTS:,}", field="", limit=_MAX_PARTS)
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
        part.name, part.is_file = (
            shorten(_text(options[b"name"], "a part's name"), _MAX_NAME_CHARS),
            b"filename" in options,
        )

    def _end(self) -> None:
        self.is_complete = True


async def read_form(content_type: str, chunks: AsyncGenerator[bytes, None]) -> list[Part]:
    _, options = parse_options_header(content_type)
    try:
        form = MultipartReader(options.get(b"boundary", b""))
        async for chunk in chunks:
            form.write(chunk)
    except FormParserError as error:
        raise InputError(f"the form cannot be parsed: {error}", field="") from None
    if not form.is_complete:
        raise InputError("the form cannot be parsed: the closing boundary is missing", field="")
    return form.parts


def to_json_content(parts: list[Part], request: Descriptor) -> dict[str, Any]:
    """The JSON content that is equivalent to a form, with bytes instead of base64.

    Dotted names such as `decoding.num_beams` become nested objects, and repeated inputs become lists.
    """
    inputs = inputs_field(request)
    input_fields = oneof_fields(inputs.message_type) or (inputs,) if inputs is not None else ()
    repeatable = {descriptor.name for descriptor in input_fields}
    content: dict[str, Any] = {}
    for part in sorted(parts, key=lambda part: part.name.count(".")):
        *parents, leaf = part.name.split(".")
        value = _value(part, (fields_at_path(request, parents) or {}).get(leaf))
        target: Any = content
        for parent in parents:
            target = target.setdefault(parent, {}) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            raise InputError(f"{part.name} is not a known field", field=part.name)
        if part.name in repeatable:
            target.setdefault(leaf, []).append(value)
        elif leaf in target:
            raise InputError(f"{part.name} is set twice; set it once", field=part.name)
        else:
            target[leaf] = value
    return content


def _value(part: Part, descriptor: FieldDescriptor | None) -> Any:
    """Parse numbers, booleans and objects as JSON. Text that is not JSON is left to the schema validation."""
    if part.is_file:
        return bytes(part.data)
    text = _text(part.data, part.name)
    if descriptor is None or descriptor.type == FieldDescriptor.TYPE_STRING:
        return text
    if descriptor.message_type is not None and descriptor.message_type.name == "Image":
        return text
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def _text(data: bytes | bytearray, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InputError(f"{name} is not valid UTF-8 text", field=name) from None
