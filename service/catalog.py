"""The list of what is served: asked of Serve itself, so that it is true while models come, go and roll."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from headwaiter.v1 import models_pb2 as pb
from service.ingress.calls import Call
from service.ingress.endpoint import Endpoint, Keyring, Recorder
from service.ingress.grpc import Servicer
from service.ingress.health import Health

NAME = "catalog"


class Catalog(Servicer, Health):
    name = NAME

    def __init__(
        self, models: Sequence[Mapping[str, str]], keys: Keyring | None, recorder: Recorder, *, local: bool
    ) -> None:
        self._models = sorted(models, key=lambda each: each["name"])
        self.endpoint = Endpoint(
            NAME, {"ListModels": self._list}, does="listing models", keys=keys, recorder=recorder, local=local
        )

    def is_ready(self) -> bool:
        return True

    async def names(self) -> list[str]:
        return [each["name"] for each in self._models]

    async def _list(self, _: pb.ListModelsRequest, __: Call) -> Message:
        ready = await asyncio.to_thread(_running)
        found = [pb.ModelSummary(**each, ready=each["name"] in ready) for each in self._models]
        return pb.ListModelsResponse(models=found)


def _running() -> set[str]:
    from ray import serve

    applications: dict[str, Any] = serve.status().applications
    return {name for name, app in applications.items() if app.status == "RUNNING"}


def replicas_wanted() -> dict[str, int]:
    """By application: how many Serve means to have of its model."""
    from ray.serve.context import _get_global_client

    client: Any = _get_global_client()
    return {
        name: sum(each["target_num_replicas"] for each in application["deployments"].values())
        for name, application in client.get_serve_details()["applications"].items()
    }
