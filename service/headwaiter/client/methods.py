"""Turns operations into client methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def client_method(build_call: Callable[..., Any], run: str) -> Any:
    """Return a method that builds a call and passes it to the client's method `run`.

    Signature and docstring are those of `build_call`.
    """

    @wraps(build_call)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, run)(build_call(*args, **kwargs))

    signature = inspect.signature(build_call)
    method.__signature__ = signature.replace(parameters=[_SELF, *signature.parameters.values()])  # type: ignore[attr-defined]
    return method
