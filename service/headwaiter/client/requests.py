"""Builds request messages from Python values. Raises InvalidInput, with the field, for values that cannot be sent."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from google.protobuf.message import Message

from headwaiter.client.errors import InvalidInput
from headwaiter.client.results import Action
from headwaiter.v1 import classification_pb2, common_pb2, policy_pb2

_DECODING = tuple(field.name for field in common_pb2.Decoding.DESCRIPTOR.fields)
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


ImageLike: TypeAlias = "str | os.PathLike[str] | bytes | Readable | SavableImage"
"""A path, the content of an image file, an open file or a PIL image."""

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


def image(source: ImageLike) -> common_pb2.Image:
    return common_pb2.Image(data=_image_bytes(source))


def text_input(text: str | tuple[str, str]) -> classification_pb2.Input:
    if isinstance(text, str):
        return set_fields(classification_pb2.Input(), {"text": text})
    first, second = text
    pair = set_fields(classification_pb2.TextPair(), {"first": first, "second": second}, "text_pair.")
    return classification_pb2.Input(text_pair=pair)


def image_input(source: ImageLike) -> classification_pb2.Input:
    return classification_pb2.Input(image=image(source))


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
        raise InvalidInput(f"{field} is {_truncated_repr(value)}, which cannot be sent: {error}", field=field) from None


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


def _image_bytes(source: ImageLike) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str | os.PathLike):
        return Path(source).read_bytes()
    if isinstance(source, SavableImage):
        return _encode_png(source)
    if isinstance(source, Readable):
        return source.read()
    kind = type(source).__name__
    raise InvalidInput(f"image is a {kind}; pass a path, bytes, an open file or a PIL image", field="image")


def _encode_png(source: SavableImage) -> bytes:
    buffer = io.BytesIO()
    (source.convert("RGB") if source.mode in _MODES_WITHOUT_PNG else source).save(buffer, format="PNG")
    return buffer.getvalue()
