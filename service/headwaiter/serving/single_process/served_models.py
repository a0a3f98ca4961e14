"""The models that the process serves now, and the catalog of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from google.protobuf.message import Message

from headwaiter.api.context import RequestContext
from headwaiter.api.drain import Drain
from headwaiter.api.endpoint import Endpoint, KeyChecker, RequestRecorder
from headwaiter.api.errors import UnknownModelError
from headwaiter.api.grpc_servicer import Servicer
from headwaiter.api.health import Watchers
from headwaiter.serving.config import CATALOG, CATALOG_MESSAGE_MB
from headwaiter.serving.single_process.served_model import ServedModel
from headwaiter.v1 import models_pb2 as pb

_NO_MODELS: Mapping[str, ServedModel] = MappingProxyType({})


class Catalog(Servicer):
    """Lists the served models."""

    def __init__(
        self, models: ServedModels, keys: KeyChecker | None, recorder: RequestRecorder, *, local: bool
    ) -> None:
        self._models = models
        self.endpoint = Endpoint(
            CATALOG,
            {"ListModels": self._list},
            task_description="listing models",
            keys=keys,
            recorder=recorder,
            message_mb=CATALOG_MESSAGE_MB,
            local=local,
        )

    async def _list(self, _: pb.ListModelsRequest, __: RequestContext) -> Message:
        manifests = {name: model.server.model.manifest for name, model in sorted(self._models.current.items())}
        return pb.ListModelsResponse(
            models=[
                pb.ModelSummary(
                    name=name, task=manifest.task, version=manifest.version, ready=self._models.is_ready(name)
                )
                for name, manifest in manifests.items()
            ]
        )


class ServedModels:
    """Finds the model of a request. `current` is replaced as a whole, so requests see the old or the new models."""

    def __init__(self) -> None:
        self.current = _NO_MODELS
        self.catalog: Catalog
        self.drain, self.watchers = Drain(), Watchers()

    @property
    def is_accepting(self) -> bool:
        """False while the process stops: nothing is ready and new requests are rejected."""
        return not self.drain.is_draining

    @property
    def names(self) -> list[str]:
        return sorted(self.current)

    def is_ready(self, name: str) -> bool:
        model = self.current.get(name)
        return self.is_accepting and model is not None and model.server.is_ready()

    def not_ready(self) -> list[str]:
        return [name for name in self.names if not self.is_ready(name)]

    def are_all_ready(self) -> bool:
        return not self.not_ready()

    def are_all_alive(self) -> bool:
        return all(model.server.is_ready() for model in self.current.values())

    def find(self, name: str | None) -> ServedModel:
        """The model with this name; without a name, the only model. Raises UnknownModelError."""
        if name is None and len(self.current) == 1:
            return next(iter(self.current.values()))
        if name is not None and name in self.current:
            return self.current[name]
        raise UnknownModelError(name, self.names)
