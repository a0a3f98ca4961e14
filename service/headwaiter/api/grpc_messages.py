"""Parses the message of a gRPC call; its fields are counted first, because each one costs memory once it is parsed."""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from headwaiter.api.methods import Method
from headwaiter.tasks.errors import InputError

MAX_FIELDS = 4096
"""Of a message, without those of nested ones: far above the limit of inputs, and cheap to count."""
_VARINT, _FIXED64, _LENGTH_DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_CONTINUES = 0x80


def parse_message(method: Method, content: bytes) -> Message:
    """Raises InputError if the content is not a message of the method or has too many fields."""
    name = method.request.DESCRIPTOR.name
    if has_more_fields(content, MAX_FIELDS):
        message = f"the {name} has more than {MAX_FIELDS:,} fields; send fewer inputs per request"
        raise InputError(message, field="", limit=MAX_FIELDS)
    try:
        return method.request.FromString(content)
    except DecodeError:
        raise InputError(f"the message is not a valid {name}", field="") from None


def has_more_fields(content: bytes, limit: int) -> bool:
    """Whether a serialized message has more than `limit` fields. Content that is not one is left to the parser."""
    if len(content) <= 2 * limit:  # a field has at least two bytes
        return False
    position = 0
    try:
        for _ in range(limit):
            key, position = _read_varint(content, position)
            wire_type = key & 7
            if wire_type == _VARINT:
                _, position = _read_varint(content, position)
            elif wire_type == _LENGTH_DELIMITED:
                size, position = _read_varint(content, position)
                position += size
            else:
                position += _FIXED_SIZES[wire_type]
            if position >= len(content):
                return False
    except (IndexError, KeyError):
        return False
    return True


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position and the position after it."""
    value = shift = 0
    while content[position] & _CONTINUES:
        value |= (content[position] & ~_CONTINUES) << shift
        position, shift = position + 1, shift + 7
    return value | content[position] << shift, position + 1
