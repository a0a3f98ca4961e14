"""Serve trained transformers: `open_model` runs a model package in this process, `Client` calls a running service."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# ONNX Runtime sends usage data to its vendor and stores a device id by default; it reads this when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from headwaiter.client import AsyncClient, Client
    from headwaiter.tasks.loading import open_model

__all__ = ["AsyncClient", "Client", "open_model"]


def __getattr__(name: str) -> Any:
    """Import on first use: a client-only installation has none of the engine's dependencies."""
    if name in ("AsyncClient", "Client"):
        from headwaiter import client

        return getattr(client, name)
    if name == "open_model":
        from headwaiter.tasks.loading import open_model

        return open_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
