"""Asking an opened model about more than it lets wait at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Input = TypeVar("Input")
_PART = 1000


def in_parts(ask: Callable[[Sequence[Input]], Sequence[Any]], inputs: Sequence[Input]) -> list[Any]:
    """The answers, in the order of the inputs."""
    return [answer for begin in range(0, len(inputs), _PART) for answer in ask(inputs[begin : begin + _PART])]
