"""`python -m service.probe ADDRESS APPLICATION …`: exit 0 if each is ready; for a kubelet, which cannot name them.

A gRPC health check of Kubernetes' own sends no metadata, and without the key `application` Serve knows no answer.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_SECONDS = 2


def failures(address: str, applications: list[str]) -> list[str]:
    """One line for each application that is not ready."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return [f"{name}: {why}" for name in applications if (why := _why_not(stub, name))]


def _why_not(stub: health_pb2_grpc.HealthStub, application: str) -> str | None:
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS, metadata=[("application", application)])
    except grpc.RpcError as error:
        return str(error.code().name)
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    found = failures(sys.argv[1], sys.argv[2:])
    sys.stderr.writelines(f"{line}\n" for line in found)
    sys.exit(bool(found))
