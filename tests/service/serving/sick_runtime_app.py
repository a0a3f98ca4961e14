"""Models whose replicas run on `sick_runtime`."""

from __future__ import annotations

from typing import Any

from ray import serve

from headwaiter.serving.application import catalog
from headwaiter.serving.replica import ModelReplica
from tests.service.serving import sick_runtime

__all__ = ["catalog", "model"]
sick_runtime.install()


class SickReplica(ModelReplica):
    """Defined here, so that a replica imports this module."""


def model(args: dict[str, Any]) -> serve.Application:
    return serve.deployment(name="model")(SickReplica).bind(args)
