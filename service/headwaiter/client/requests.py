"""Builds request messages from Python values. Raises InvalidInput, with the field, for values that cannot be sent."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headwaiter.client.errors import InvalidInput
from headwaiter.client.results import Action
from headwaiter.v1 import classification_pb2, common_pb2, policy_pb2

_DECODING = tuple(field.name for field in common_pb2.Decoding.DESCRIPTOR.fields)
_EXPECTED = {
    FieldDescriptor.TYPE_STRING: "a string",
    FieldDescriptor.TYPE_BOOL: "True or False",
    FieldDescriptor.TYPE_INT32: "an integer",
    FieldDescriptor.TYPE_INT64: "an integer",
    FieldDescriptor.TYPE_FLOAT: "a number",
    FieldDescriptor.TYPE_DOUBLE: "a number",
}
_MODES_WITHOUT_PNG = ("CMYK", "HSV", "LAB", "YCbCr")


@runtime_checkable
class Readable(Protocol):
    """An open file."""

    def read(self) -> bytes: ...


@runtime_checkable
class SavableImage(Protocol):
    """A PIL image or an object with the same `save` and `convert` methods."""

    mode: str

    def save(self, fp: Any, format: str) -> None: ...  # noqa: A002

    def convert(self, mode: str) -> Any: ...


FileLike: TypeAlias = "os.PathLike[str] | bytes | Readable | SavableImage"
"""A path object, the content of an image file, an open file or a PIL image."""

_FILE_TYPES = (os.PathLike, bytes, bytearray, memoryview, Readable, SavableImage)

ImageLike: TypeAlias = "str | FileLike"
"""As FileLike; a string is a path."""

TextLike: TypeAlias = str | tuple[str, str]
"""A text or a pair of texts."""

Numbers: TypeAlias = Iterable[float]
"""A list, tuple or array of numbers."""

ActionLike: TypeAlias = int | Numbers | Action
"""A discrete action, a continuous action or the action returned by a previous call."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history. The current step has a state only."""

    state: Numbers
    action: ActionLike | None = None
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """Steps of an episode, oldest first, and the sum of rewards to aim for."""

    steps: Sequence[Step]
    target_return: float


def set_fields(message: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Set the fields of `message` that are not None and return it.

    Raises InvalidInput with the field, including the index of an invalid list item. `prefix` is the path of `message`
    in the request.
    """
    for name, value in values.items():
        if value is not None:
            _set_field(message, name, value, f"{prefix}{name}")
    return message


def from_fields(message: Any, fields: Mapping[str, Any]) -> Any:
    """Set the fields of a request of any task: one value or a list of them, images as ImageLike, dicts for messages."""
    names = message.DESCRIPTOR.fields_by_name
    for name, value in fields.items():
        if name not in names:
            known = ", ".join(names)
            raise InvalidInput(f"{name} is not a field of {message.DESCRIPTOR.name}; it has {known}", field=name)
        field = names[name]
        values = as_list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            values = [
                _submessage(field.message_type, item, f"{name}[{index}]" if field.is_repeated else name)
                for index, item in enumerate(values)
            ]
        set_fields(message, {name: values if field.is_repeated else values[0]})
    return message


def _submessage(kind: Descriptor, value: Any, path: str) -> Any:
    if isinstance(value, Message) or value is None:
        return value
    if kind.full_name == common_pb2.Image.DESCRIPTOR.full_name:
        return common_pb2.Image(data=_image_bytes(value, path))
    try:
        return json_format.ParseDict(value, GetMessageClass(kind)())
    except (json_format.ParseError, AttributeError, TypeError) as error:
        raise InvalidInput(f"{path} does not match {kind.name}: {error}", field=path) from None


def decoding(parameters: Mapping[str, Any]) -> common_pb2.Decoding | None:
    """Return the decoding parameters as a message, or None if none is set."""
    unknown = parameters.keys() - set(_DECODING)
    if unknown:
        raise TypeError(f"{sorted(unknown)[0]} is not a decoding parameter; use one of {', '.join(_DECODING)}")
    values = {name: value for name, value in parameters.items() if value is not None}
    return set_fields(common_pb2.Decoding(), values, "decoding.") if values else None


def is_batch(value: Any) -> bool:
    return isinstance(value, list | tuple)


def as_list(value: Any) -> list[Any]:
    return list(value) if is_batch(value) else [value]


def text(value: str, field: str) -> str:
    """Return the text. Raises InvalidInput if it is no string or not valid Unicode."""
    if not isinstance(value, str):
        raise InvalidInput(f"{field} is {_truncated_repr(value)}; it must be a string", field=field)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        reason = f"{field} is {_truncated_repr(value)}, which cannot be sent: {error}"
        raise InvalidInput(reason, field=field) from None
    return value


def texts(value: str | Sequence[str], field: str) -> list[str]:
    """Return a text or several texts as a list. Raises InvalidInput with the index of an invalid one."""
    if not is_batch(value):
        return [text(value, field)]  # type: ignore[arg-type]
    return [text(item, f"{field}[{index}]") for index, item in enumerate(value)]


def image(source: ImageLike, field: str = "image") -> common_pb2.Image:
    return common_pb2.Image(data=_image_bytes(source, field))


def images(value: ImageLike | Sequence[ImageLike]) -> list[common_pb2.Image]:
    if not is_batch(value):
        return [image(value)]  # type: ignore[arg-type]
    return [image(item, f"image[{index}]") for index, item in enumerate(value)]  # type: ignore[arg-type]


def text_input(value: TextLike, field: str) -> classification_pb2.Input:
    if not isinstance(value, tuple):
        return classification_pb2.Input(text=text(value, field))
    if len(value) != 2:
        raise InvalidInput(f"{field} is a tuple of {len(value)}; a pair of texts has 2, a list is a batch", field=field)
    first, second = (text(item, f"{field}[{index}]") for index, item in enumerate(value))
    return classification_pb2.Input(text_pair=classification_pb2.TextPair(first=first, second=second))


def image_input(source: ImageLike, field: str) -> classification_pb2.Input:
    return classification_pb2.Input(image=image(source, field))


def any_input(value: TextLike | FileLike, field: str) -> classification_pb2.Input:
    """A string is a text and a tuple a pair of texts; everything else is an image."""
    if isinstance(value, str | tuple):
        return text_input(value, field)
    if isinstance(value, _FILE_TYPES):
        return image_input(value, field)
    expected = "a string, a pair of strings, a path object, bytes, an open file or a PIL image"
    raise InvalidInput(f"{field} is {_truncated_repr(value)}; it must be {expected}", field=field)


def history(value: History) -> policy_pb2.History:
    steps = [step(item, f"steps[{index}].") for index, item in enumerate(value.steps)]
    return set_fields(policy_pb2.History(steps=steps), {"target_return": value.target_return})


def step(value: Step, prefix: str = "") -> policy_pb2.Step:
    fields = {"state": value.state, "action": action(value.action), "reward": value.reward}
    return set_fields(policy_pb2.Step(), fields, prefix)


def step_from_message(message: policy_pb2.Step) -> Step:
    value: ActionLike | None = None
    if message.HasField("action"):
        discrete = message.action.WhichOneof("choice") == "discrete"
        value = message.action.discrete if discrete else tuple(message.action.continuous.values)
    return Step(tuple(message.state), value, message.reward if message.HasField("reward") else None)


def action(value: ActionLike | None) -> policy_pb2.Action | None:
    if isinstance(value, Action):
        value = value.continuous if value.discrete is None else value.discrete
    if value is None:
        return None
    if isinstance(value, Iterable):
        vector = set_fields(policy_pb2.Vector(), {"values": value}, "action.")
        return policy_pb2.Action(continuous=vector)
    return set_fields(policy_pb2.Action(), {"discrete": value})


def _set_field(message: Message, name: str, value: Any, field: str) -> None:
    target = getattr(message, name)
    try:
        if isinstance(value, Message):
            target.CopyFrom(value)
        elif hasattr(target, "extend"):
            target.extend(value)
        else:
            setattr(message, name, value)
    except (TypeError, ValueError) as error:
        if hasattr(target, "extend"):
            field, value = _find_invalid_value(type(message)(), name, value, field)
        expected = _EXPECTED.get(message.DESCRIPTOR.fields_by_name[name].type)
        is_type_known = expected is not None and isinstance(error, TypeError)
        reason = f"; it must be {expected}" if is_type_known else f", which cannot be sent: {error}"
        raise InvalidInput(f"{field} is {_truncated_repr(value)}{reason}", field=field) from None


def _find_invalid_value(empty: Message, name: str, values: Any, field: str) -> tuple[str, Any]:
    """Return field and value of the first invalid item, or `field` and `values` if `values` is not iterable."""
    for index, value in enumerate(values if hasattr(values, "__iter__") else ()):
        try:
            getattr(empty, name).append(value)
        except (TypeError, ValueError):
            return f"{field}[{index}]", value
    return field, values


def _truncated_repr(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _image_bytes(source: ImageLike, field: str) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | os.PathLike):
        return Path(source).read_bytes()
    if isinstance(source, SavableImage):
        return _encode_png(source)
    if isinstance(source, Readable):
        return source.read()
    reason = f"{field} is {_truncated_repr(source)}; it must be a path, bytes, an open file or a PIL image"
    raise InvalidInput(reason, field=field)


def _encode_png(source: SavableImage) -> bytes:
    buffer = io.BytesIO()
    (source.convert("RGB") if source.mode in _MODES_WITHOUT_PNG else source).save(buffer, format="PNG")
    return buffer.getvalue()
