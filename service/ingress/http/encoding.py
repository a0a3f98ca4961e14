"""Messages as JSON: the names of the protocol, zeros written out, images as base64."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from pydantic_core import to_json

from service.ingress.http.fields import plain_field

HEAVY = 256 << 10  # bytes: so much keeps an event loop busy for about a millisecond


async def encoded(message: Message) -> bytes:
    return await asyncio.to_thread(encode, message) if message.ByteSize() > HEAVY else encode(message)


def encode(message: Message) -> bytes:
    return dump(json_of(message))


def dump(value: Any) -> bytes:
    """JSON has no NaN and no infinity: they become null."""
    return to_json(value, inf_nan_mode="null")


def json_of(message: Message) -> Any:
    descriptor: Any = message.DESCRIPTOR
    plain = plain_field(descriptor)
    if plain is not None:
        return _value(plain, getattr(message, plain.name))
    return {
        field.name: _value(field, getattr(message, field.name))
        for field in descriptor.fields
        if not field.has_presence or message.HasField(field.name)
    }


def _value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return dict(sorted(value.items()))
    if field.is_repeated:
        return [_single(field, each) for each in value]
    return _single(field, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            return json_of(value)
        case FieldDescriptor.TYPE_BYTES:
            return base64.b64encode(value).decode()
        case FieldDescriptor.TYPE_FLOAT:
            return float(str(np.float32(value)))  # 0.1 as 0.1, not with the digits that a double would have
        case _:
            return value
