"""Builds pydantic types from protobuf descriptors, so that the HTTP schema always matches gRPC.

Validated values are keyword arguments for the message constructors."""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import combinations
from typing import Annotated, Any, NotRequired

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from headwaiter.api.http.fields import (
    inputs_field,
    is_oneof_member,
    is_required,
    oneof_fields,
    oneof_groups,
    request_fields,
    unwrapped_field,
)
from headwaiter.api.http.proto_comments import comment

# mypy does not support types that are built at run time.
_typed_dict: Any = TypedDict
_annotated: Any = Annotated
_list: Any = list
_dict: Any = dict

ONE, MANY = "<one>", "<many>"
_MAX_FLOAT32 = 3.4028235e38


def _decode_base64(value: Any) -> bytes:
    """Decode strings; files of a form are already bytes."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("base64_type", "is not valid base64")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise PydanticCustomError("base64", "is not valid base64") from None


def _float_to_int(value: Any) -> Any:
    """Accept whole floats as integers, because JSON does not distinguish 4.0 from 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _integer(bits: int) -> Any:
    limit = 1 << (bits - 1)
    return Annotated[int, Field(ge=-limit, le=limit - 1), BeforeValidator(_float_to_int)]


_BASE64 = WithJsonSchema({"type": "string", "contentEncoding": "base64"})
_SCALARS: dict[int, Any] = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_BYTES: Annotated[bytes, BeforeValidator(_decode_base64), _BASE64],
    FieldDescriptor.TYPE_INT32: _integer(32),
    FieldDescriptor.TYPE_INT64: _integer(64),
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_FLOAT: Annotated[float, Field(ge=-_MAX_FLOAT32, le=_MAX_FLOAT32)],
}


@cache
def request_type(request: Descriptor) -> Any:
    """The type of a request body."""
    inputs = inputs_field(request)
    if inputs is None:
        return message_type(request)
    fields = {name: _field_type(field) for name, field in request_fields(request).items()}
    alternatives = oneof_fields(inputs.message_type)
    for field in alternatives or (inputs,):
        value = _annotated[_one_or_many(_item_type(field)), Field(description=comment(field.full_name))]
        fields[field.name] = NotRequired[value] if alternatives else value
    if not alternatives:
        return _object_type(request, fields)
    names = [field.name for field in alternatives]
    collect = AfterValidator(partial(_collect_inputs, inputs.name, names))
    return _annotated[_object_type(request, fields, {"oneOf": [{"required": [name]} for name in names]}), collect]


@cache
def message_type(message: Descriptor) -> Any:
    """The type of a message in JSON."""
    wrapped = unwrapped_field(message)
    if wrapped is not None:
        wrap = AfterValidator(lambda value: {wrapped.name: value})
        return _annotated[_value_type(wrapped), Field(description=comment(wrapped.full_name)), wrap]
    type_ = _object_type(
        message, {field.name: _field_type(field) for field in message.fields}, _oneof_constraints(message)
    )
    for group in oneof_groups(message):
        type_ = _annotated[type_, AfterValidator(partial(_at_most_one, [field.name for field in group]))]
    return type_


@cache
def request_adapter(request: Descriptor) -> TypeAdapter[Any]:
    return TypeAdapter(request_type(request))


def _object_type(message: Descriptor, fields: dict[str, Any], extra: dict[str, Any] | None = None) -> Any:
    type_ = _typed_dict(message.name, fields)
    type_.__doc__ = comment(message.full_name)
    type_.__pydantic_config__ = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=extra or None
    )
    return type_


def _field_type(field: FieldDescriptor) -> Any:
    nullable = field.has_presence and not is_oneof_member(field)
    value = _value_type(field) | None if nullable else _value_type(field)
    described = _annotated[value, Field(description=comment(field.full_name))]
    return described if is_required(field) else NotRequired[described]


def _value_type(field: FieldDescriptor) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return _dict[_item_type(key), _item_type(value)]
    return _annotated[_list[_item_type(field)], Field(fail_fast=True)] if field.is_repeated else _item_type(field)


def _item_type(field: FieldDescriptor) -> Any:
    return _SCALARS[field.type] if field.message_type is None else message_type(field.message_type)


def _one_or_many(item: Any) -> Any:
    items = _annotated[_list[item], Field(min_length=1, fail_fast=True)]
    tag: Callable[[Any], str] = lambda value: MANY if isinstance(value, list) else ONE  # noqa: E731
    as_list = AfterValidator(lambda value: value if isinstance(value, list) else [value])
    return _annotated[_annotated[item, Tag(ONE)] | _annotated[items, Tag(MANY)], Discriminator(tag), as_list]


def _oneof_constraints(message: Descriptor) -> dict[str, Any]:
    """JSON Schema constraints that forbid setting two fields of a oneof."""
    pairs = [pair for group in oneof_groups(message) for pair in combinations(group, 2)]
    constraints = [{"not": {"required": [first.name, second.name]}} for first, second in pairs]
    return {"allOf": constraints} if constraints else {}


def _at_most_one(names: Iterable[str], values: dict[str, Any]) -> dict[str, Any]:
    set_names = [name for name in names if name in values]
    if len(set_names) > 1:
        raise PydanticCustomError("oneof", "has {names}; set only one of them", {"names": " and ".join(set_names)})
    return values


def _collect_inputs(field: str, names: list[str], values: dict[str, Any]) -> dict[str, Any]:
    """Convert inputs under the name of a oneof field to the list of messages that `field` holds."""
    name = next((name for name in names if name in _at_most_one(names, values)), None)
    if name is None:
        raise PydanticCustomError("missing", "is missing", {"names": names})
    inputs = [{name: value} for value in values.pop(name)]
    return {**values, field: inputs}
