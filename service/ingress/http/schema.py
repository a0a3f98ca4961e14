"""The messages as types that pydantic checks, made from their descriptors: HTTP cannot drift from gRPC.

What comes out of a check is what a message's constructor takes."""

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
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from service.ingress.http.comments import comment
from service.ingress.http.fields import (
    alternatives,
    choices,
    inputs_of,
    is_chosen,
    is_required,
    plain_field,
    request_fields,
)

# mypy knows types that are written, not types that are made.
_typed_dict: Any = TypedDict
_annotated: Any = Annotated
_list: Any = list
_dict: Any = dict

ONE, MANY = "<one>", "<many>"
_FLOAT32 = 3.4028235e38  # the largest, as it is written shortest


def _bytes_of(value: Any) -> bytes:
    """Files of a form are bytes already."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise PydanticCustomError("base64_type", "is not base64")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        raise PydanticCustomError("base64", "is not base64") from None


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 4.0 is 4."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _integer(bits: int) -> Any:
    limit = 1 << (bits - 1)
    return Annotated[int, Field(ge=-limit, le=limit - 1), BeforeValidator(_whole)]


_BASE64 = WithJsonSchema({"type": "string", "contentEncoding": "base64"})
_SCALARS: dict[int, Any] = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_BYTES: Annotated[bytes, BeforeValidator(_bytes_of), _BASE64],
    FieldDescriptor.TYPE_INT32: _integer(32),
    FieldDescriptor.TYPE_INT64: _integer(64),
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_FLOAT: Annotated[float, Field(ge=-_FLOAT32, le=_FLOAT32)],
}


@cache
def request_type(request: Descriptor) -> Any:
    """The body of a call."""
    inputs = inputs_of(request)
    if inputs is None:
        return message_type(request)
    asked = {name: _entry(field) for name, field in request_fields(request).items()}
    several = alternatives(inputs.message_type)
    for field in several or (inputs,):
        value = _annotated[_one_or_many(_single(field)), Field(description=comment(field.full_name))]
        asked[field.name] = NotRequired[value] if several else value
    if not several:
        return _object(request, asked)
    names = [field.name for field in several]
    check = AfterValidator(partial(_gathered, inputs.name, names))
    return _annotated[_object(request, asked, {"oneOf": [{"required": [name]} for name in names]}), check]


@cache
def message_type(message: Descriptor) -> Any:
    plain = plain_field(message)
    if plain is not None:
        wrap = AfterValidator(lambda value: {plain.name: value})
        return _annotated[_value(plain), Field(description=comment(plain.full_name)), wrap]
    made = _object(message, {field.name: _entry(field) for field in message.fields}, _forbidden(message))
    for choice in choices(message):
        made = _annotated[made, AfterValidator(partial(_at_most_one, [field.name for field in choice]))]
    return made


@cache
def request_adapter(request: Descriptor) -> TypeAdapter[Any]:
    return TypeAdapter(request_type(request))


def _object(message: Descriptor, fields: dict[str, Any], extra: dict[str, Any] | None = None) -> Any:
    made = _typed_dict(message.name, fields)
    made.__doc__ = comment(message.full_name)
    made.__pydantic_config__ = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=extra or None
    )
    return made


def _entry(field: FieldDescriptor) -> Any:
    nullable = field.has_presence and not is_chosen(field)
    value = _value(field) | None if nullable else _value(field)
    described = _annotated[value, Field(description=comment(field.full_name))]
    return described if is_required(field) else NotRequired[described]


def _value(field: FieldDescriptor) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return _dict[_single(key), _single(value)]
    return _annotated[_list[_single(field)], Field(fail_fast=True)] if field.is_repeated else _single(field)


def _single(field: FieldDescriptor) -> Any:
    return _SCALARS[field.type] if field.message_type is None else message_type(field.message_type)


def _one_or_many(item: Any) -> Any:
    several = _annotated[_list[item], Field(min_length=1, fail_fast=True)]
    kind: Callable[[Any], str] = lambda value: MANY if isinstance(value, list) else ONE  # noqa: E731
    as_list = AfterValidator(lambda value: value if isinstance(value, list) else [value])
    return _annotated[_annotated[item, Tag(ONE)] | _annotated[several, Tag(MANY)], Discriminator(kind), as_list]


def _forbidden(message: Descriptor) -> dict[str, Any]:
    """Two of a choice, in the words of JSON Schema."""
    pairs = [pair for choice in choices(message) for pair in combinations(choice, 2)]
    barred = [{"not": {"required": [one.name, other.name]}} for one, other in pairs]
    return {"allOf": barred} if barred else {}


def _at_most_one(names: Iterable[str], values: dict[str, Any]) -> dict[str, Any]:
    given = [name for name in names if name in values]
    if len(given) > 1:
        raise PydanticCustomError("choice", "has {given}; keep one of them", {"given": " and ".join(given)})
    return values


def _gathered(field: str, names: list[str], values: dict[str, Any]) -> dict[str, Any]:
    """Inputs that were given by the name of a choice, as a list of choices."""
    given = next((name for name in names if name in _at_most_one(names, values)), None)
    if given is None:
        raise PydanticCustomError("missing", "is missing", {"names": names})
    inputs = [{given: value} for value in values.pop(given)]
    return {**values, field: inputs}
