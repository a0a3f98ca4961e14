"""grpc.health.v1 for one model. Load balancers ask without a key, so none is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from grpc import StatusCode
from grpc_health.v1 import health_pb2 as pb

from service.ingress.methods import METHODS

_LOOK_EVERY = 1.0  # seconds
_SERVICES = {method.service for method in METHODS.values()}


class Health:
    """Answers for the replica (no name), the model by its name, and the services of the protocol."""

    name: str
    is_ready: Callable[[], bool]

    async def Check(self, request: pb.HealthCheckRequest, grpc_context: Any) -> pb.HealthCheckResponse:  # noqa: N802
        if not self._knows(request.service):
            grpc_context.set_code(StatusCode.NOT_FOUND)
            grpc_context.set_details(f"{request.service} is not served here; {self.name} is")
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def Watch(  # noqa: N802
        self,
        request: pb.HealthCheckRequest,
        grpc_context: Any,  # noqa: ARG002
    ) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                yield pb.HealthCheckResponse(status=status)
                told = status
            await asyncio.sleep(_LOOK_EVERY)

    async def List(self, request: pb.HealthListRequest, grpc_context: Any) -> pb.HealthListResponse:  # noqa: ARG002, N802
        return pb.HealthListResponse(statuses={self.name: pb.HealthCheckResponse(status=self._status(self.name))})

    def _knows(self, service: str) -> bool:
        return service in ("", self.name) or service in _SERVICES

    def _status(self, service: str) -> Any:
        status = pb.HealthCheckResponse
        if not self._knows(service):
            return status.SERVICE_UNKNOWN
        return status.SERVING if self.is_ready() else status.NOT_SERVING
