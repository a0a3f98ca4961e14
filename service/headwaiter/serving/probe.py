"""Readiness probe for the kubelet: `python -m headwaiter.serving.probe ADDRESS APPLICATION …` exits 0 if ready.

The kubelet's built-in gRPC probe sends no metadata, and Serve routes health checks by the metadata key `application`.

Until all applications have been ready once, all must be: no traffic goes to models that are still starting. Afterwards
one is enough: it proves that the node's proxy works, and a replica lost elsewhere must not take every node out.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_TIMEOUT_SECONDS = 2


def unready_applications(address: str, applications: Sequence[str]) -> list[str]:
    """One `NAME: REASON` for each application that is not ready."""
    return [reason for reason in _check_each(address, applications) if reason]


def readiness_failures(address: str, applications: Sequence[str], all_ready_marker: Path) -> list[str]:
    """Reasons why the node is not ready, empty if it is. Stops at the first application that decides the result."""
    failures = []
    was_ready = all_ready_marker.exists()
    with closing(_check_each(address, applications)) as reasons:
        for reason in reasons:
            if reason:
                failures.append(reason)
                if not was_ready:
                    return failures
            elif was_ready:
                return []
    if not failures:
        all_ready_marker.touch()
    return failures


def _check_each(address: str, applications: Sequence[str]) -> Generator[str | None, None, None]:
    """Check the applications in order; yields the reason why one is not ready, or None."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in applications:
            reason = _not_ready_reason(stub, name)
            yield f"{name}: {reason}" if reason else None


def _not_ready_reason(stub: health_pb2_grpc.HealthStub, application: str) -> str | None:
    try:
        response = stub.Check(
            health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_SECONDS, metadata=[("application", application)]
        )
    except grpc.RpcError as error:
        return str(error.code().name)
    serving = response.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else str(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))


if __name__ == "__main__":
    marker = Path(tempfile.gettempdir(), "headwaiter-all-answered")
    failures = readiness_failures(sys.argv[1], sys.argv[2:], marker)
    sys.stderr.writelines(f"{failure}\n" for failure in failures)
    sys.exit(bool(failures))
