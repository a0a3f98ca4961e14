"""What callers give, as messages. What cannot be sent is refused here, in the words of the service."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from google.protobuf.message import Message

from headwaiter.v1 import classification_pb2, common_pb2, policy_pb2
from service.client.errors import InvalidInput
from service.client.results import Action

_DECODING = tuple(field.name for field in common_pb2.Decoding.DESCRIPTOR.fields)
_NOT_IN_PNG = ("CMYK", "HSV", "LAB", "YCbCr")


@runtime_checkable
class Readable(Protocol):
    """An open file."""

    def read(self) -> bytes: ...


@runtime_checkable
class Savable(Protocol):
    """An image of PIL, or of whatever saves itself as PIL's do."""

    mode: str

    def save(self, fp: Any, format: str) -> None: ...  # noqa: A002

    def convert(self, mode: str) -> Any: ...


Picture: TypeAlias = "str | os.PathLike[str] | bytes | Readable | Savable"
"""A path, the content of a file, an open file or a PIL image."""

Numbers: TypeAlias = Iterable[float]
"""A list, a tuple, an array."""

Taken: TypeAlias = int | Numbers | Action


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a history: what was seen, what was done, what it brought. The present has a state only."""

    state: Numbers
    action: Taken | None = None
    reward: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    steps: Sequence[Step]
    target_return: float


def fill(message: Any, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Sets what is not None; an error names the field, and which of several values it was."""
    for name, value in values.items():
        if value is not None:
            _set(message, name, value, f"{prefix}{name}")
    return message


def decoding(wanted: Mapping[str, Any]) -> common_pb2.Decoding | None:
    unknown = wanted.keys() - set(_DECODING)
    if unknown:
        raise TypeError(f"{sorted(unknown)[0]} is no way of decoding; there are {', '.join(_DECODING)}")
    stated = {name: value for name, value in wanted.items() if value is not None}
    return fill(common_pb2.Decoding(), stated, "decoding.") if stated else None


def is_many(value: Any) -> bool:
    return isinstance(value, list | tuple)


def listed(value: Any) -> list[Any]:
    return list(value) if is_many(value) else [value]


def image(picture: Picture) -> common_pb2.Image:
    return common_pb2.Image(data=_content(picture))


def text_input(text: str | tuple[str, str]) -> classification_pb2.Input:
    if isinstance(text, str):
        return fill(classification_pb2.Input(), {"text": text})
    first, second = text
    pair = fill(classification_pb2.TextPair(), {"first": first, "second": second}, "text_pair.")
    return classification_pb2.Input(text_pair=pair)


def image_input(picture: Picture) -> classification_pb2.Input:
    return classification_pb2.Input(image=image(picture))


def history(given: History) -> policy_pb2.History:
    steps = [step(each, f"steps[{index}].") for index, each in enumerate(given.steps)]
    return fill(policy_pb2.History(steps=steps), {"target_return": given.target_return})


def step(given: Step, prefix: str = "") -> policy_pb2.Step:
    values = {"state": given.state, "action": taken(given.action), "reward": given.reward}
    return fill(policy_pb2.Step(), values, prefix)


def given_step(sent: policy_pb2.Step) -> Step:
    """The other way round."""
    action: Taken | None = None
    if sent.HasField("action"):
        discrete = sent.action.WhichOneof("choice") == "discrete"
        action = sent.action.discrete if discrete else tuple(sent.action.continuous.values)
    return Step(tuple(sent.state), action, sent.reward if sent.HasField("reward") else None)


def taken(action: Taken | None) -> policy_pb2.Action | None:
    if isinstance(action, Action):
        action = action.continuous if action.discrete is None else action.discrete
    if action is None:
        return None
    if isinstance(action, Iterable):
        vector = fill(policy_pb2.Vector(), {"values": action}, "action.")
        return policy_pb2.Action(continuous=vector)
    return fill(policy_pb2.Action(), {"discrete": action})


def _set(message: Message, name: str, value: Any, field: str) -> None:
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
            field, value = _refused(type(message)(), name, value, field)
        raise InvalidInput(f"{field} is {_short(value)}, which cannot be sent: {error}", field=field) from None


def _refused(empty: Message, name: str, values: Any, field: str) -> tuple[str, Any]:
    """Which of the values it was; all of them, where they are no sequence at all."""
    for index, value in enumerate(values if hasattr(values, "__iter__") else ()):
        try:
            getattr(empty, name).append(value)
        except (TypeError, ValueError):
            return f"{field}[{index}]", value
    return field, values


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _content(picture: Picture) -> bytes:
    if isinstance(picture, bytes | bytearray | memoryview):
        return bytes(picture)
    if isinstance(picture, str | os.PathLike):
        return Path(picture).read_bytes()
    if isinstance(picture, Savable):
        return _saved(picture)
    if isinstance(picture, Readable):
        return picture.read()
    kind = type(picture).__name__
    raise InvalidInput(f"image is a {kind}; a path, bytes, an open file or a PIL image can be sent", field="image")


def _saved(picture: Savable) -> bytes:
    out = io.BytesIO()
    (picture.convert("RGB") if picture.mode in _NOT_IN_PNG else picture).save(out, format="PNG")
    return out.getvalue()
