"""Application builders that the declarative Serve config names by import path.

Heavy imports happen inside the builders, so that this module is cheap to import for readers of the config.
"""

from __future__ import annotations

from typing import Any

from ray import serve


def model(args: dict[str, Any]) -> serve.Application:
    from headwaiter.serving.replica import ModelReplica

    return serve.deployment(name="model")(ModelReplica).bind(args)


def catalog(args: dict[str, Any]) -> serve.Application:
    from headwaiter.serving.replica import CatalogReplica

    return serve.deployment(name="catalog")(CatalogReplica).bind(args)
