"""Headwaiter: model packages to answers. `open_model` runs one in this process; `service.client` calls a served one."""

from __future__ import annotations

from typing import Any

__all__ = ["open_model"]


def __getattr__(name: str) -> Any:
    """Importing the client must not import the engine, nor need what only the engine needs."""
    if name == "open_model":
        from service.model import open_model

        return open_model
    raise AttributeError(f"module 'service' has no attribute {name!r}")
