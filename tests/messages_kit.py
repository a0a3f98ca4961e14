"""Random protobuf messages: any value that a field can hold, drawn by hypothesis."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from tests.images_kit import noise

_INT32 = st.one_of(st.integers(-3, 20), st.integers(-(2**31), 2**31 - 1))
_INT64 = st.one_of(st.integers(-3, 20), st.integers(-(2**63), 2**63 - 1))
_FLOAT = st.one_of(st.floats(-2, 2), st.floats(width=32))
_BYTES = st.one_of(st.binary(max_size=40), st.just(noise(12, 9)), st.just(noise(12, 9)[:60]))
_KINDS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(max_size=40),
    FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_FLOAT: _FLOAT,
    FieldDescriptor.TYPE_DOUBLE: st.one_of(st.floats(-2, 2), st.floats()),
}


def messages(kind: type[Message], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    """`fixed` are strategies for whole fields of any depth, by name."""
    return _messages(kind.DESCRIPTOR, fixed)


def _messages(descriptor: Descriptor, fixed: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Message]:
    fields = {field.name: _field(field, fixed) for field in descriptor.fields}
    alternatives = {
        field.name: oneof.name for oneof in descriptor.oneofs for field in oneof.fields if len(oneof.fields) > 1
    }

    def build(content: dict[str, Any]) -> Message:
        taken: set[str] = set()
        kept = {}
        for name, value in content.items():
            group = alternatives.get(name)
            if group in taken:
                continue
            if group is not None:
                taken.add(group)
            kept[name] = value
        return GetMessageClass(descriptor)(**kept)

    return st.fixed_dictionaries({}, optional=fields).map(build)


def _field(field: FieldDescriptor, fixed: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    if field.name in fixed:
        return fixed[field.name]
    inner = field.message_type
    single = _KINDS[field.type] if inner is None else _messages(inner, fixed)
    return st.lists(single, max_size=3) if field.is_repeated else single
