"""A client's methods, made of verbs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)


def method(build: Callable[..., Any], run: str) -> Any:
    """Hands what the verb builds to the client's method `run`; signature and help are the verb's."""

    @wraps(build)
    def verb(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, run)(build(*args, **kwargs))

    signature = inspect.signature(build)
    verb.__signature__ = signature.replace(parameters=[_SELF, *signature.parameters.values()])  # type: ignore[attr-defined]
    return verb
