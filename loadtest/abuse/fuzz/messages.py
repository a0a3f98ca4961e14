"""Random protobuf messages with fields that are valid, at a limit, or absurd."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from loadtest.abuse.fuzz.mutations import mutate_bytes
from loadtest.traffic.sample_inputs import sample_photos

_SET_SHARE = 0.5  # probability that an optional field is set
_MAX_REPEATED = 3
_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-9, 1e38, 1e39, 1e308, math.inf, -math.inf, math.nan)
_WORDS = ("", "a", "ab cd. ef", "你好。", "🌻", "\x00", "\u202e\ufeff", "a sunflower to the left of", "ab " * 60)
_SMALL_IMAGE = (96, 64)
Scalar = Callable[[random.Random], Any]


def _int32(source: random.Random) -> int:
    return source.choice((source.randint(-2, 9), source.randint(-(2**31), 2**31 - 1)))


def _int64(source: random.Random) -> int:
    return source.choice((source.randint(-2, 9), source.randint(-(2**63), 2**63 - 1)))


def _float(source: random.Random) -> float:
    return source.choice((source.uniform(-2, 2), source.choice(_FLOATS)))


def _image(source: random.Random) -> bytes:
    photo = source.choice(sample_photos(_SMALL_IMAGE)).data
    return source.choice((photo, mutate_bytes(source, photo), source.randbytes(20), b""))


_SCALARS: Mapping[int, Scalar] = {
    FieldDescriptor.TYPE_STRING: lambda source: source.choice(_WORDS),
    FieldDescriptor.TYPE_BYTES: _image,
    FieldDescriptor.TYPE_BOOL: lambda source: source.random() < 0.5,
    FieldDescriptor.TYPE_INT32: _int32,
    FieldDescriptor.TYPE_INT64: _int64,
    FieldDescriptor.TYPE_FLOAT: lambda source: source.choice((source.uniform(-2, 2), 0.0, 1e38, math.inf, math.nan)),
    FieldDescriptor.TYPE_DOUBLE: _float,
}
_FIELDS: Mapping[str, Scalar] = {  # few tokens, so that most requests are cheap
    "max_new_tokens": lambda source: source.choice((1, 2, 3, 4, 4, 0, -1, 2**31 - 1)),
}
_ALWAYS_SET = ("max_new_tokens", "decoding")


def random_message(source: random.Random, message_type: type[Message], state_size: int = 5) -> Message:
    """Fill the fields of a message at random; states of policies have `state_size` numbers, most of the time."""
    descriptor: Any = message_type.DESCRIPTOR
    return _message(source, descriptor, state_size)


def _message(source: random.Random, descriptor: Descriptor, state_size: int) -> Message:
    message = GetMessageClass(descriptor)()
    oneofs = {oneof.name: source.choice(oneof.fields).name for oneof in descriptor.oneofs if len(oneof.fields) > 1}
    for field in descriptor.fields:
        oneof = field.containing_oneof
        if oneof is not None and oneofs.get(oneof.name, field.name) != field.name:
            continue
        if field.name not in _ALWAYS_SET and source.random() > _SET_SHARE:
            continue
        _set_field(source, message, field, state_size)
    return message


def _set_field(source: random.Random, message: Message, field: FieldDescriptor, state_size: int) -> None:
    if field.is_repeated:
        size = state_size if field.name == "state" and source.random() < 0.8 else source.randint(0, _MAX_REPEATED)
        getattr(message, field.name).extend(_value(source, field, state_size) for _ in range(size))
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(_value(source, field, state_size))
    else:
        setattr(message, field.name, _value(source, field, state_size))


def _value(source: random.Random, field: FieldDescriptor, state_size: int) -> Any:
    if field.message_type is not None:
        return _message(source, field.message_type, state_size)
    return _FIELDS.get(field.name, _SCALARS[field.type])(source)
