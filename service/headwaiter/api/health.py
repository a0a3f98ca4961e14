"""The grpc.health.v1 service of one model. It requires no API key, because load balancers send none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from grpc import StatusCode
from grpc_health.v1 import health_pb2 as pb

from headwaiter.api.drain import Drain
from headwaiter.api.methods import METHODS
from headwaiter.tasks.errors import shorten

_POLL_SECONDS = 1.0
MAX_WATCHERS = 100
WATCH_SECONDS = 600.0
_SERVICES = {method.service for method in METHODS.values()}


class Watchers:
    """Counts the open `Watch` streams of a server. They need no API key, so their number and time are limited."""

    def __init__(self) -> None:
        self._count = 0

    @contextmanager
    def one_more(self) -> Iterator[bool]:
        """Whether one more stream is allowed."""
        is_allowed = self._count < MAX_WATCHERS
        self._count += is_allowed
        try:
            yield is_allowed
        finally:
            self._count -= is_allowed


class Health:
    """Reports the health of the replica (empty service name), of the model by name, and of the services of
    `headwaiter.v1`."""

    name: str
    is_ready: Callable[[], bool]
    drain: Drain
    watchers: Watchers

    async def Check(self, request: pb.HealthCheckRequest, grpc_context: Any) -> pb.HealthCheckResponse:  # noqa: N802
        if not self._is_known(request.service):
            grpc_context.set_code(StatusCode.NOT_FOUND)
            grpc_context.set_details(f"{shorten(request.service)} is not served by this replica; {self.name} is")
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def Watch(  # noqa: N802
        self, request: pb.HealthCheckRequest, grpc_context: Any
    ) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        """Yield the status and its changes. Ends after `WATCH_SECONDS`, and when the server stops."""
        with self.watchers.one_more() as is_allowed:
            if not is_allowed:
                grpc_context.set_code(StatusCode.RESOURCE_EXHAUSTED)
                grpc_context.set_details(f"{MAX_WATCHERS} clients watch the health already; call Check instead")
                return
            last_status, ends_at = None, time.monotonic() + WATCH_SECONDS
            while time.monotonic() < ends_at:
                status = self._status(request.service)
                if status != last_status:
                    yield pb.HealthCheckResponse(status=status)
                    last_status = status
                if self.drain.is_draining:
                    return
                await asyncio.sleep(_POLL_SECONDS)

    async def List(self, request: pb.HealthListRequest, grpc_context: Any) -> pb.HealthListResponse:  # noqa: ARG002, N802
        return pb.HealthListResponse(statuses={self.name: pb.HealthCheckResponse(status=self._status(self.name))})

    def _is_known(self, service: str) -> bool:
        return service in ("", self.name) or service in _SERVICES

    def _status(self, service: str) -> Any:
        status = pb.HealthCheckResponse
        if not self._is_known(service):
            return status.SERVICE_UNKNOWN
        return status.SERVING if self.is_ready() and not self.drain.is_draining else status.NOT_SERVING
