"""How JSON differs from the messages, and nowhere else: an image is its base64 text and a vector is its list; what a
call is about may be one value instead of a list; and where that is a choice, it is given by the choice's name."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_PLAIN = {"headwaiter.v1.Image": "data", "headwaiter.v1.Vector": "values"}
_ONLY_ANSWERED = frozenset({"headwaiter.v1.Action.scores"})


def inputs_of(request: Descriptor) -> FieldDescriptor | None:
    """What a call is about: the first field, where there can be several of it."""
    first = next(iter(request.fields), None)
    return first if first is not None and first.is_repeated else None


def plain_field(message: Descriptor) -> FieldDescriptor | None:
    """The only field of a message that is nothing but this field in JSON."""
    name = _PLAIN.get(message.full_name)
    return message.fields_by_name[name] if name else None


def alternatives(message: Descriptor | None) -> tuple[FieldDescriptor, ...]:
    """All fields of a message that is nothing but a choice of them."""
    if message is None or len(choices(message)) != 1 or len(choices(message)[0]) != len(message.fields):
        return ()
    return choices(message)[0]


def choices(message: Descriptor) -> tuple[tuple[FieldDescriptor, ...], ...]:
    """Fields of which one can be given; `optional` makes a choice of one, which is none."""
    return tuple(tuple(oneof.fields) for oneof in message.oneofs if len(oneof.fields) > 1)


@cache
def request_fields(request: Descriptor) -> dict[str, FieldDescriptor]:
    """What the body of a call can have."""
    inputs = inputs_of(request)
    several = alternatives(inputs.message_type) if inputs is not None else ()
    kept = request.fields[1:] if several else request.fields
    return {field.name: field for field in (*several, *kept)}


def is_chosen(field: FieldDescriptor) -> bool:
    """Whether it is one of a choice."""
    return field.containing_oneof is not None and len(field.containing_oneof.fields) > 1


def is_required(field: FieldDescriptor) -> bool:
    return not field.has_presence and field.full_name not in _ONLY_ANSWERED


def fields_at(request: Descriptor, steps: Iterable[str]) -> dict[str, FieldDescriptor] | None:
    """What can be at a place in a body; nothing where there is no object."""
    fields = request_fields(request)
    for step in steps:
        message = fields[step].message_type if step in fields else None
        if message is None or plain_field(message) is not None:
            return None
        fields = {field.name: field for field in message.fields}
    return fields


def has_images(request: Descriptor) -> bool:
    messages = (field.message_type for field in request_fields(request).values())
    return any(message is not None and message.name == "Image" for message in messages)
