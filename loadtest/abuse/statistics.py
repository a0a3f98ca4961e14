"""Percentiles of latencies."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed; NaN without values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms"
