"""What Ray Serve runs: one application per model, and the catalog. Import paths for the declarative config.

The imports that cost are made by the replicas, not by whoever reads the configuration.
"""

from __future__ import annotations

from typing import Any

from ray import serve


def model(args: dict[str, Any]) -> serve.Application:
    from service.replica import ModelReplica

    return serve.deployment(name="model")(ModelReplica).bind(args)


def catalog(args: dict[str, Any]) -> serve.Application:
    from service.replica import CatalogReplica

    return serve.deployment(name="catalog")(CatalogReplica).bind(args)
