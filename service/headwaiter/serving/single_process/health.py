"""grpc.health.v1 of the process: overall, by model name and, as with Ray Serve, by the metadata key `application`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1 import health_pb2_grpc

from headwaiter.api.health import Health
from headwaiter.serving.config import CATALOG
from headwaiter.serving.single_process.metadata import application_of
from headwaiter.serving.single_process.served_models import ServedModels
from headwaiter.tasks.errors import shorten


def _unknown(name: str) -> str:
    return f"no model is named {shorten(name)}; `Models/ListModels` lists the models"


class _ModelHealth(Health):
    """Health of the model that has this name now; the model may be replaced while a client watches it."""

    def __init__(self, models: ServedModels, name: str) -> None:
        self.name = name
        self.is_ready = lambda: models.is_ready(name)
        self.drain, self.watchers = models.drain, models.watchers


class _ProcessHealth(Health):
    """Health of all models together (empty service name), and of each by its name."""

    name = CATALOG

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self.is_ready = models.are_all_ready
        self.drain, self.watchers = models.drain, models.watchers

    async def Check(self, request: pb.HealthCheckRequest, grpc_context: Any) -> pb.HealthCheckResponse:  # noqa: N802
        if not self._is_known(request.service):
            grpc_context.set_code(grpc.StatusCode.NOT_FOUND)
            grpc_context.set_details(_unknown(request.service))
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: pb.HealthListRequest, grpc_context: Any) -> pb.HealthListResponse:  # noqa: ARG002, N802
        """Only the overall status: the names of the models are for clients with an API key."""
        return pb.HealthListResponse(statuses={"": pb.HealthCheckResponse(status=self._status(""))})

    def _is_known(self, service: str) -> bool:
        return service in self._models.current or super()._is_known(service)

    def _status(self, service: str) -> Any:
        if service in self._models.current:
            return _ModelHealth(self._models, service)._status(service)
        return super()._status(service)


class HealthServicer:
    def __init__(self, models: ServedModels) -> None:
        self._models = models

    async def Check(self, request: pb.HealthCheckRequest, context: Any) -> pb.HealthCheckResponse:  # noqa: N802
        health = self._health(context)
        return pb.HealthCheckResponse() if health is None else await health.Check(request, context)

    async def Watch(  # noqa: N802
        self, request: pb.HealthCheckRequest, context: Any
    ) -> AsyncGenerator[pb.HealthCheckResponse, None]:
        health = self._health(context)
        if health is not None:
            async with aclosing(health.Watch(request, context)) as responses:
                async for response in responses:
                    yield response

    async def List(self, request: pb.HealthListRequest, context: Any) -> pb.HealthListResponse:  # noqa: N802
        health = self._health(context)
        return pb.HealthListResponse() if health is None else await health.List(request, context)

    def _health(self, context: Any) -> Health | None:
        """The health that the call asks for; None, with the error on `context`, if there is no such model."""
        application = application_of(context)
        if application in (None, CATALOG):
            return _ProcessHealth(self._models)
        if application in self._models.current:
            return _ModelHealth(self._models, str(application))
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details(_unknown(str(application)))
        return None


def add_health(server: grpc.aio.Server, models: ServedModels) -> None:
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(models), server)
