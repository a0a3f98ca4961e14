"""Registry of all RPC methods, built from the protobuf descriptors. Ray dispatches by method name without the service,
so names are unique across services."""

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

_STUBS: tuple[Any, ...] = (
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
    client_streaming: bool
    server_streaming: bool

    @property
    def needs_admission(self) -> bool:
        """Whether admission control applies. Episodes are exempt: each holds a slot of its own."""
        return self.service != _MODELS and not self.client_streaming


def _methods() -> dict[str, Method]:
    methods = {}
    for stub in _STUBS:
        for service in stub.DESCRIPTOR.services_by_name.values():
            for descriptor in service.methods:
                methods[descriptor.name] = Method(
                    descriptor.name,
                    service.full_name,
                    GetMessageClass(descriptor.input_type),
                    GetMessageClass(descriptor.output_type),
                    descriptor.client_streaming,
                    descriptor.server_streaming,
                )
    return methods


METHODS = _methods()
