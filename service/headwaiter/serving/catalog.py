"""The catalog: lists the served models. Readiness comes from Serve's status, so it is correct during updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.endpoint import Endpoint, KeyChecker, RequestRecorder
from headwaiter.api.errors import UnknownModelError
from headwaiter.api.grpc_servicer import GrpcContext, Servicer, accept
from headwaiter.api.health import Health
from headwaiter.api.methods import Method
from headwaiter.serving.cached_value import CachedValue
from headwaiter.serving.config import CATALOG_MESSAGE_MB
from headwaiter.serving.ray_compat import ServeController
from headwaiter.v1 import models_pb2 as pb

NAME = "catalog"


class CatalogEndpoint(Endpoint):
    """Lists the models, and answers the gRPC calls that name no model in the metadata key `application`."""

    model_names: Sequence[str] = ()

    def unsupported(self, method: str) -> Exception:  # noqa: ARG002
        return UnknownModelError(None, self.model_names)


class Catalog(Servicer, Health):
    name = NAME

    def __init__(
        self, models: Sequence[Mapping[str, str]], keys: KeyChecker | None, recorder: RequestRecorder, *, local: bool
    ) -> None:
        self._models = sorted(models, key=lambda model: model["name"])
        self.endpoint = CatalogEndpoint(
            NAME,
            {"ListModels": self._list},
            task_description="listing models",
            keys=keys,
            recorder=recorder,
            message_mb=CATALOG_MESSAGE_MB,
            local=local,
        )
        self._running = CachedValue(_running_applications)
        self.endpoint.model_names = [model["name"] for model in self._models]

    def accept(self, method: Method, context: GrpcContext) -> bool:
        """Authenticate a call before it is dispatched; if not accepted, sets the error on `context`."""
        return accept(self.endpoint, method, context)

    def is_ready(self) -> bool:
        return True

    async def names(self) -> list[str]:
        return [model["name"] for model in self._models]

    async def _list(self, _: pb.ListModelsRequest, __: RequestContext) -> Message:
        ready = await self._running.get()
        summaries = [pb.ModelSummary(**model, ready=model["name"] in ready) for model in self._models]
        return pb.ListModelsResponse(models=summaries)


def _running_applications() -> set[str]:
    from ray import serve

    applications: dict[str, Any] = serve.status().applications
    return {name for name, app in applications.items() if app.status == "RUNNING"}


def desired_replicas() -> dict[str, int]:
    """Serve's target number of replicas by application."""
    return {
        name: sum(deployment["target_num_replicas"] for deployment in application["deployments"].values())
        for name, application in ServeController().applications().items()
    }
