"""The differences between JSON bodies and protobuf messages.

- An image is a base64 string and a vector is a list, without the wrapper object.
- The inputs of a request may be a single value instead of a list.
- If the inputs are a oneof, the name of the chosen field replaces that of the inputs: `{"text": [...]}`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor

_UNWRAPPED = {"headwaiter.v1.Image": "data", "headwaiter.v1.Vector": "values"}
_RESPONSE_ONLY = frozenset({"headwaiter.v1.Action.scores"})


def inputs_field(request: Descriptor) -> FieldDescriptor | None:
    """The field of the request's inputs: the first field if it is repeated, else None."""
    first = next(iter(request.fields), None)
    return first if first is not None and first.is_repeated else None


def unwrapped_field(message: Descriptor) -> FieldDescriptor | None:
    """The field that represents the whole message in JSON, or None for ordinary messages."""
    name = _UNWRAPPED.get(message.full_name)
    return message.fields_by_name[name] if name else None


def oneof_fields(message: Descriptor | None) -> tuple[FieldDescriptor, ...]:
    """All fields of a message that consists of a single oneof, else none."""
    if message is None or len(oneof_groups(message)) != 1 or len(oneof_groups(message)[0]) != len(message.fields):
        return ()
    return oneof_groups(message)[0]


def oneof_groups(message: Descriptor) -> tuple[tuple[FieldDescriptor, ...], ...]:
    """The fields of each oneof, without the synthetic oneofs of `optional` fields."""
    return tuple(tuple(oneof.fields) for oneof in message.oneofs if len(oneof.fields) > 1)


@cache
def request_fields(request: Descriptor) -> dict[str, FieldDescriptor]:
    """The fields of a request body, by their names in JSON."""
    inputs = inputs_field(request)
    alternatives = oneof_fields(inputs.message_type) if inputs is not None else ()
    other_fields = request.fields[1:] if alternatives else request.fields
    return {field.name: field for field in (*alternatives, *other_fields)}


def is_oneof_member(field: FieldDescriptor) -> bool:
    return field.containing_oneof is not None and len(field.containing_oneof.fields) > 1


def is_required(field: FieldDescriptor) -> bool:
    return not field.has_presence and field.full_name not in _RESPONSE_ONLY


def fields_at_path(request: Descriptor, path: Iterable[str]) -> dict[str, FieldDescriptor] | None:
    """The fields of the object at a path in the body, or None if there is no object at that path."""
    fields = request_fields(request)
    for name in path:
        message = fields[name].message_type if name in fields else None
        if message is None or unwrapped_field(message) is not None:
            return None
        fields = {field.name: field for field in message.fields}
    return fields


def has_images(request: Descriptor) -> bool:
    messages = (field.message_type for field in request_fields(request).values())
    return any(message is not None and message.name == "Image" for message in messages)
