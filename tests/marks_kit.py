"""Parameters of tests of which only some are run by `make test-fast`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow_except(cases: Iterable[Any], *fast: str) -> list[Any]:
    """Cases for `parametrize`, which are names or tuples that begin with a name; all but `fast` are marked slow."""
    rows = [case if isinstance(case, tuple) else (case,) for case in cases]
    missing = set(fast) - {row[0] for row in rows}
    assert not missing, f"no cases: {missing}"
    return [pytest.param(*row, marks=_marks(row[0], fast)) for row in rows]


def _marks(name: str, fast: Collection[str]) -> Any:
    return () if name in fast else pytest.mark.slow
