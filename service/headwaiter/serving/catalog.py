"""The catalog: lists the served models. Readiness comes from Serve's status, so it is correct during updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.drain import Drain
from headwaiter.api.endpoint import Endpoint, KeyChecker, RequestRecorder
from headwaiter.api.errors import UnknownModelError, absent_model_error
from headwaiter.api.grpc_servicer import GrpcContext, Servicer, accept, reject
from headwaiter.api.health import Health, Watchers
from headwaiter.api.methods import METHODS, Method
from headwaiter.serving.cached_value import CachedValue
from headwaiter.serving.config import CATALOG_MESSAGE_MB
from headwaiter.serving.ray_compat import ServeController
from headwaiter.serving.single_process.metadata import application_of
from headwaiter.serving.status import ModelStatus, model_statuses
from headwaiter.v1 import models_pb2 as pb

NAME = "catalog"
_LIST = METHODS["ListModels"]


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
        self.drain, self.watchers = Drain(), Watchers()
        self._down: set[str] = set()
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

    def is_ready(self) -> bool:
        return True

    def names(self) -> list[str]:
        return [model["name"] for model in self._models]

    def not_ready(self) -> list[str]:
        """The models that should have a replica but had none running when Serve's state was last read."""
        return [name for name in self.names() if name in self._down]

    def accept(self, method: Method, context: GrpcContext) -> bool:
        """Authenticate a call before it is dispatched; if not accepted, sets the error on `context`.

        A call to a model that has no route is rejected: the model is unknown, or it has no replica now.
        """
        application = application_of(context)
        if application in (None, NAME):
            return accept(self.endpoint, method, context)
        if accept(self.endpoint, _LIST, context):
            reject(self.endpoint, _LIST, context, absent_model_error(str(application), self.names()))
        return False

    def update(self, models: Sequence[ModelStatus]) -> None:
        self._down = {model.name for model in models if model.desired_replicas and not model.running_replicas}

    async def _list(self, _: pb.ListModelsRequest, __: RequestContext) -> Message:
        ready = await self._running.get()
        summaries = [pb.ModelSummary(**model, ready=model["name"] in ready) for model in self._models]
        return pb.ListModelsResponse(models=summaries)


def _running_applications() -> set[str]:
    from ray import serve

    applications: dict[str, Any] = serve.status().applications
    return {name for name, app in applications.items() if app.status == "RUNNING"}


def read_models() -> list[ModelStatus]:
    """The state of all models, from Serve's controller."""
    return model_statuses(ServeController().applications())
