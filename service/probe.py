"""`python -m service.probe ADDRESS APPLICATION …`: exit 0 if this node may be called; for a kubelet.

A gRPC health check of the kubelet's own sends no metadata, and without the key `application` Serve knows no answer.

At first every application must answer, so that nobody calls a model that is still starting. From then on one is enough:
it shows that the node's own proxy answers, and a replica that was lost elsewhere must not take all nodes out.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

ALL_ANSWERED = Path(tempfile.gettempdir(), "headwaiter-all-answered")
_SECONDS = 2


def failures(address: str, applications: Sequence[str]) -> list[str]:
    """One line for each application that is not ready."""
    return [why for why in _asked(address, applications) if why]


def objections(address: str, applications: Sequence[str], all_answered: Path = ALL_ANSWERED) -> list[str]:
    """What speaks against calls to this node, if anything does; no more are asked than that takes."""
    found = []
    one_is_enough = all_answered.exists()
    with closing(_asked(address, applications)) as answers:
        for why in answers:
            if why:
                found.append(why)
                if not one_is_enough:
                    return found
            elif one_is_enough:
                return []
    if not found:
        all_answered.touch()
    return found


def _asked(address: str, applications: Sequence[str]) -> Generator[str | None, None, None]:
    """One after the other: why each is not ready."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in applications:
            why = _why_not(stub, name)
            yield f"{name}: {why}" if why else None


def _why_not(stub: health_pb2_grpc.HealthStub, application: str) -> str | None:
    try:
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_SECONDS, metadata=[("application", application)])
    except grpc.RpcError as error:
        return str(error.code().name)
    serving = answer.status == health_pb2.HealthCheckResponse.SERVING
    return None if serving else str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


if __name__ == "__main__":
    against = objections(sys.argv[1], sys.argv[2:])
    sys.stderr.writelines(f"{line}\n" for line in against)
    sys.exit(bool(against))
