"""Every method of every task, from the protocol itself: Ray finds a method by its bare name, so each name is unique."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headwaiter.v1 import (
    captioning_pb2,
    classification_pb2,
    detection_pb2,
    generation_pb2,
    models_pb2,
    policy_pb2,
    translation_pb2,
)

_FILES: tuple[Any, ...] = (
    translation_pb2,
    captioning_pb2,
    classification_pb2,
    detection_pb2,
    policy_pb2,
    generation_pb2,
    models_pb2,
)
_MODELS = models_pb2.DESCRIPTOR.services_by_name["Models"].full_name


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    service: str
    request: type[Message]
    response: type[Message]
    takes_stream: bool
    gives_stream: bool

    @property
    def waits(self) -> bool:
        """Whether it asks the model for work; an episode does so with every step, and has a row of its own."""
        return self.service != _MODELS and not self.takes_stream


def _methods() -> dict[str, Method]:
    found = {}
    for file in _FILES:
        for service in file.DESCRIPTOR.services_by_name.values():
            for each in service.methods:
                found[each.name] = Method(
                    each.name,
                    service.full_name,
                    GetMessageClass(each.input_type),
                    GetMessageClass(each.output_type),
                    each.client_streaming,
                    each.server_streaming,
                )
    return found


METHODS = _methods()
