"""Models whose engine stops on a Describe request, so that the replica becomes unhealthy."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from ray import serve

from headwaiter.serving.application import catalog
from headwaiter.serving.replica import ModelReplica

__all__ = ["catalog", "model"]


class FailingEngineReplica(ModelReplica):
    async def Describe(self, request: Message, grpc_context: Any) -> Message:  # noqa: ARG002, N802
        self.model.engine.close(drain=False)
        return request


def model(args: dict[str, Any]) -> serve.Application:
    return serve.deployment(name="model")(FailingEngineReplica).bind(args)
