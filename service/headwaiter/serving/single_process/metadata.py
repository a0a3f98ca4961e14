"""Metadata of a gRPC call."""

from __future__ import annotations

from typing import Any

_APPLICATION = "application"


def application_of(context: Any) -> str | None:
    """The name of the model to which the call is addressed; None if it names none."""
    metadata = context.invocation_metadata() or ()
    return next((value for key, value in metadata if key == _APPLICATION and value), None)
