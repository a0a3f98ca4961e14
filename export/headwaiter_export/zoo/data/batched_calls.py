"""Calls an opened model in batches that fit its request queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Input = TypeVar("Input")
_BATCH_SIZE = 1000


def call_in_batches(call: Callable[[Sequence[Input]], Sequence[Any]], inputs: Sequence[Input]) -> list[Any]:
    """Return the results in the order of the inputs."""
    return [
        result for start in range(0, len(inputs), _BATCH_SIZE) for result in call(inputs[start : start + _BATCH_SIZE])
    ]
