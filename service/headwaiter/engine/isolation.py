"""Finds the items that make a batch fail, so that the others succeed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def isolate_failures(items: Sequence[Item], run: Callable[[Sequence[Item]], None]) -> list[tuple[Item, Exception]]:
    """Run the items together; if that fails, run each half by itself, down to single items.

    Returns the items that failed alone, with their errors. `run` must give the same result when it is repeated.
    """
    if not items:
        return []
    try:
        run(items)
    except Exception as error:
        if len(items) == 1:
            return [(items[0], error)]
        middle = len(items) // 2
        return isolate_failures(items[:middle], run) + isolate_failures(items[middle:], run)
    return []
