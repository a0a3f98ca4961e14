"""Hypothesis strategies for protobuf messages with arbitrary field values."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from tests.images_kit import random_png

_INT32 = st.one_of(st.integers(-3, 20), st.integers(-(2**31), 2**31 - 1))
_INT64 = st.one_of(st.integers(-3, 20), st.integers(-(2**63), 2**63 - 1))
_FLOAT = st.one_of(st.floats(-2, 2), st.floats(width=32))
_BYTES = st.one_of(st.binary(max_size=40), st.just(random_png(12, 9)), st.just(random_png(12, 9)[:60]))
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(max_size=40),
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_FLOAT: _FLOAT,
    FieldDescriptor.TYPE_DOUBLE: st.one_of(st.floats(-2, 2), st.floats()),
}


def messages(message_type: type[Message], **overrides: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    """`overrides` replace the strategies of fields with these names, at any depth."""
    return _messages(message_type.DESCRIPTOR, overrides)


def _messages(descriptor: Descriptor, overrides: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Message]:
    fields = {field.name: _field(field, overrides) for field in descriptor.fields}
    oneofs = {field.name: oneof.name for oneof in descriptor.oneofs for field in oneof.fields if len(oneof.fields) > 1}

    def build(content: dict[str, Any]) -> Message:
        used_oneofs: set[str] = set()
        values = {}
        for name, value in content.items():
            oneof = oneofs.get(name)
            if oneof in used_oneofs:
                continue
            if oneof is not None:
                used_oneofs.add(oneof)
            values[name] = value
        return GetMessageClass(descriptor)(**values)

    return st.fixed_dictionaries({}, optional=fields).map(build)


def _field(field: FieldDescriptor, overrides: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    if field.name in overrides:
        return overrides[field.name]
    item = _SCALARS[field.type] if field.message_type is None else _messages(field.message_type, overrides)
    return st.lists(item, max_size=3) if field.is_repeated else item
