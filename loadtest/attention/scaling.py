"""Growth of time and memory with sequence length: measurements, fitted exponents and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_FITTED_POINTS = 4  # the last three doublings


@dataclass(frozen=True, slots=True)
class ScalingMeasurement:
    mixer: str
    length: int
    milliseconds: float  # median forward pass
    spread: float  # largest over smallest round
    peak_mb: float  # above a process that has only loaded the runtime


@dataclass(frozen=True, slots=True)
class SkippedLength:
    mixer: str
    length: int
    reason: str


@dataclass(frozen=True, slots=True)
class Slope:
    mixer: str
    time: float
    memory: float
    theory: int  # theoretical exponent of time


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    megabytes: float

    def skip_reason(self, before: Sequence[ScalingMeasurement]) -> str | None:
        """Return why the next doubling is skipped, extrapolated from earlier lengths, or None if it is not."""
        if not before:
            return None
        seconds = _extrapolate([row.milliseconds / 1000 for row in before])
        megabytes = _extrapolate([row.peak_mb for row in before])
        if seconds > self.seconds:
            return f"a forward pass would take about {seconds:.1f} s; the limit is {self.seconds:g} s"
        if megabytes > self.megabytes:
            return f"about {megabytes:,.0f} MB would be needed; the limit is {self.megabytes:,.0f} MB"
        return None


def fit_exponent(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent of the length that best fits the last values."""
    slope, _ = np.polyfit(np.log2(lengths[-_FITTED_POINTS:]), np.log2(values[-_FITTED_POINTS:]), 1)
    return float(slope)


def _extrapolate(values: Sequence[float]) -> float:
    growth = values[-1] / values[-2] if len(values) > 1 else 4.0
    return values[-1] * growth
