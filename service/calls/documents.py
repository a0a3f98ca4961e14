"""Messages as JSON, with the protocol's own names, and back."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from headwaiter.v1 import policy_pb2
from service.client import History, InvalidInput, Step
from service.client.requests import given_step


def document(message: Message) -> dict[str, Any]:
    """Numbers stay numbers, unlike in protobuf's own JSON, where 64 bits become text."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_plain(each) for each in value]
        else:
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return document(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def read_history(text: str, target_return: float | None) -> History:
    """A state as a list of numbers, or a whole history as an object."""
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"history is not JSON: {error}", field="history") from None
    if not isinstance(given, list | dict):
        raise InvalidInput(f"history is {given!r}; it is a list of numbers or an object with steps", field="history")
    if isinstance(given, list):
        given = {"steps": [{"state": given}]}
    try:
        history = json_format.ParseDict(given, policy_pb2.History())
    except json_format.ParseError as error:
        raise InvalidInput(f"history does not have its form: {str(error).splitlines()[0]}", field="history") from None
    if target_return is None and not history.HasField("target_return"):
        raise InvalidInput("target_return is missing; it is the sum of rewards to aim for", field="target_return")
    steps: list[Step] = [given_step(step) for step in history.steps]
    return History(steps, history.target_return if target_return is None else target_return)
