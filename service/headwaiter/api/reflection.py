"""Server reflection: `grpcurl` and similar tools list and call the methods without the .proto files."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from headwaiter.api.methods import METHODS

V1 = "grpc.reflection.v1.ServerReflection"
V1_ALPHA: str = reflection.SERVICE_NAME


def reflection_handler(service: str) -> Any:
    """A generic handler of a version of reflection. grpcio has v1alpha only; the messages of v1 are the same."""
    health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    services = sorted({method.service for method in METHODS.values()} | {health, V1_ALPHA})
    servicer: Any = reflection.aio.ReflectionServicer(services)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": handler})
