"""Models whose engine ends when they are asked for something that they do not do: a replica that must be replaced."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from ray import serve

from service.app import catalog
from service.replica import ModelReplica

__all__ = ["catalog", "model"]


class SickReplica(ModelReplica):
    async def ListModels(self, request: Message, grpc_context: Any) -> Message:  # noqa: ARG002, N802
        self.model.engine.close(drain=False)
        return request


def model(args: dict[str, Any]) -> serve.Application:
    return serve.deployment(name="model")(SickReplica).bind(args)
