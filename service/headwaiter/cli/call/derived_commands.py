"""Subcommands of `headwaiter call` for tasks without commands of their own, derived from the request message."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from rich.console import Console

from headwaiter.cli.call.context import CallContext, subcommand
from headwaiter.cli.call.json_messages import message_to_dict
from headwaiter.client import InvalidInput, operations
from headwaiter.protocol.methods import Method, methods_of
from headwaiter.protocol.tasks import TaskSpec

_SCALARS: dict[int, type] = {
    FieldDescriptor.CPPTYPE_STRING: str,
    FieldDescriptor.CPPTYPE_BOOL: bool,
    FieldDescriptor.CPPTYPE_INT32: int,
    FieldDescriptor.CPPTYPE_INT64: int,
    FieldDescriptor.CPPTYPE_UINT32: int,
    FieldDescriptor.CPPTYPE_UINT64: int,
    FieldDescriptor.CPPTYPE_FLOAT: float,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
}
_IMAGE = "headwaiter.v1.Image"


def unary_methods(spec: TaskSpec) -> Iterator[Method]:
    for method in methods_of(spec.load_stubs()):
        if not method.client_streaming and not method.server_streaming:
            yield method


def derive_command(method: Method) -> Callable[..., None]:
    """Return a command with one option per field of the request. It prints the response as JSON."""
    fields: Sequence[Any] = method.request.DESCRIPTOR.fields

    def command(call_context: CallContext, **values: Any) -> None:
        given = {field.name: _parse(field, values[field.name]) for field in fields if values[field.name]}
        call_context.execute(operations.call(call_context.model, method.name, given), _print_response)

    command.__name__ = method.name
    command.__doc__ = f"Call {method.name} and print its response as JSON."
    return subcommand(*map(_option, fields))(command)


def _option(field: FieldDescriptor) -> Parameter:
    kind, text = _kind(field)
    repeatable = "; repeatable" if field.is_repeated else ""
    value: Any = (list[kind] if field.is_repeated else kind) | None  # type: ignore[valid-type]
    annotation: Any = Annotated[value, typer.Option(help=f"{text}{repeatable}.", show_default=False)]
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _kind(field: FieldDescriptor) -> tuple[Any, str]:
    if field.message_type is None:
        kind = _SCALARS.get(field.cpp_type, str)
        return kind, {str: "Text", bool: "Switch", int: "Integer", float: "Number"}[kind]
    return (Path, "Image file") if field.message_type.full_name == _IMAGE else (str, "JSON object")


def _parse(field: FieldDescriptor, value: Any) -> Any:
    """Parse JSON objects; other values are sent as they are."""
    if field.message_type is None or field.message_type.full_name == _IMAGE:
        return value
    try:
        return [json.loads(item) for item in value] if field.is_repeated else json.loads(value)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{field.name} is not valid JSON: {error}", field=field.name) from None


def _print_response(console: Console, response: Message) -> None:
    console.out(json.dumps(message_to_dict(response), ensure_ascii=False, indent=2), highlight=False)
