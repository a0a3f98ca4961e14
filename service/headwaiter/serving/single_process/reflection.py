"""Server reflection, v1 and v1alpha: `grpcurl` and similar tools list and call the methods without the .proto files."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from headwaiter.api.methods import METHODS

# grpcio-reflection has v1alpha only; v1 has the same messages, wire-compatible, under another service name.
_VERSIONS = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


def add_reflection(server: grpc.aio.Server) -> None:
    services = sorted({method.service for method in METHODS.values()} | {_HEALTH, reflection.SERVICE_NAME})
    servicer: Any = reflection.aio.ReflectionServicer(services)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": handler}) for service in _VERSIONS]
    )
