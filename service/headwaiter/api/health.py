"""The grpc.health.v1 service of one model. It requires no API key, because load balancers send none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from grpc import StatusCode
from grpc_health.v1 import health_pb2 as pb

from headwaiter.api.methods import METHODS
from headwaiter.tasks.errors import shorten

_POLL_SECONDS = 1.0
_SERVICES = {method.service for method in METHODS.values()}


class Health:
    """Reports the health of the replica (empty service name), of the model by name, and of the services of
    `headwaiter.v1`."""

    name: str
    is_ready: Callable[[], bool]

    async def Check(self, request: pb.HealthCheckRequest, grpc_context: Any) -> pb.HealthCheckResponse:  # noqa: N802
        if not self._is_known(request.service):
            grpc_context.set_code(StatusCode.NOT_FOUND)
            grpc_context.set_details(f"{shorten(request.service)} is not served by this replica; {self.name} is")
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def Watch(  # noqa: N802
        self,
        request: pb.HealthCheckRequest,
        grpc_context: Any,  # noqa: ARG002
    ) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        last_status = None
        while True:
            status = self._status(request.service)
            if status != last_status:
                yield pb.HealthCheckResponse(status=status)
                last_status = status
            await asyncio.sleep(_POLL_SECONDS)

    async def List(self, request: pb.HealthListRequest, grpc_context: Any) -> pb.HealthListResponse:  # noqa: ARG002, N802
        return pb.HealthListResponse(statuses={self.name: pb.HealthCheckResponse(status=self._status(self.name))})

    def _is_known(self, service: str) -> bool:
        return service in ("", self.name) or service in _SERVICES

    def _status(self, service: str) -> Any:
        status = pb.HealthCheckResponse
        if not self._is_known(service):
            return status.SERVICE_UNKNOWN
        return status.SERVING if self.is_ready() else status.NOT_SERVING
