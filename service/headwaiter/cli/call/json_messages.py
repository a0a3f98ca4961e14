"""Converts messages to JSON with the protocol's field names, and histories from it."""

from __future__ import annotations

import base64
import json
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from headwaiter.client import History, InvalidInput, Step
from headwaiter.client.requests import step_from_message
from headwaiter.v1 import policy_pb2


def message_to_dict(message: Message) -> dict[str, Any]:
    """Return a message as a dict. Unlike in protobuf's JSON mapping, 64-bit integers are numbers."""
    content: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            content[field.name] = dict(value)
        elif field.is_repeated:
            content[field.name] = [_to_json(item) for item in value]
        else:
            content[field.name] = _to_json(value)
    return content


def _to_json(value: Any) -> Any:
    if isinstance(value, Message):
        return message_to_dict(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def read_history(text: str, target_return: float | None) -> History:
    """Parse a history from JSON: a state as a list of numbers, or an object with `steps` and `target_return`.

    `target_return` takes precedence over that of the object. Raises InvalidInput.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"history is not valid JSON: {error}", field="history") from None
    if not isinstance(content, list | dict):
        raise InvalidInput(f"history is {content!r}; it must be a list of numbers or an object", field="history")
    if isinstance(content, list):
        content = {"steps": [{"state": content}]}
    try:
        history = json_format.ParseDict(content, policy_pb2.History())
    except json_format.ParseError as error:
        raise InvalidInput(
            f"history does not match the schema: {str(error).splitlines()[0]}", field="history"
        ) from None
    if target_return is None and not history.HasField("target_return"):
        raise InvalidInput("target_return is missing; set it to the sum of rewards to aim for", field="target_return")
    steps: list[Step] = [step_from_message(step) for step in history.steps]
    return History(steps, history.target_return if target_return is None else target_return)
