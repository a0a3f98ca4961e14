"""Encodes protobuf messages as JSON, with proto field names, default values included and images as base64."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pydantic_core import to_json

from headwaiter.api.http.fields import unwrapped_field

OFFLOAD_BYTES = 256 << 10  # larger messages would block the event loop for about a millisecond or more


async def encode_off_loop(message: Message) -> bytes:
    """Encode large messages in a thread, small ones inline."""
    return await asyncio.to_thread(encode, message) if message.ByteSize() > OFFLOAD_BYTES else encode(message)


def encode(message: Message) -> bytes:
    return dump(to_json_value(message))


def dump(value: Any) -> bytes:
    """Serialize to JSON; NaN and infinity become null."""
    return to_json(value, inf_nan_mode="null")


def to_json_value(message: Message) -> Any:
    descriptor: Any = message.DESCRIPTOR
    wrapped = unwrapped_field(descriptor)
    if wrapped is not None:
        return _value(wrapped, getattr(message, wrapped.name))
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in descriptor.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if field.is_repeated:
        return [_item(field, item) for item in value]
    return _item(field, value)


def _item(field: FieldDescriptor, value: Any) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return to_json_value(value)
        case FieldDescriptor.TYPE_BYTES:
            return base64.b64encode(value).decode()
        case FieldDescriptor.TYPE_FLOAT:
            return float(str(np.float32(value)))  # shortest float32 representation: 0.1, not 0.10000000149
        case _:
            return value
