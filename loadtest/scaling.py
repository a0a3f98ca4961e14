"""How time and memory grow with the length of a sequence: rows, fitted powers, and what is not worth waiting for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_FITTED = 4  # lengths: the last three doublings


@dataclass(frozen=True, slots=True)
class Scaled:
    mixer: str
    length: int
    milliseconds: float  # of one pass, the median of rounds
    spread: float  # the largest round over the smallest
    peak_mb: float  # above a process that has loaded the runtime alone


@dataclass(frozen=True, slots=True)
class LeftOut:
    mixer: str
    length: int
    because: str


@dataclass(frozen=True, slots=True)
class Slope:
    mixer: str
    time: float
    memory: float
    theory: int  # of time


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float
    megabytes: float

    def reason_against(self, before: Sequence[Scaled]) -> str | None:
        """Why the next doubling is left out, judged by the growth between those before it."""
        if not before:
            return None
        seconds = _next([row.milliseconds / 1000 for row in before])
        megabytes = _next([row.peak_mb for row in before])
        if seconds > self.seconds:
            return f"a pass would take about {seconds:.1f} s, the limit is {self.seconds:g} s"
        if megabytes > self.megabytes:
            return f"it would need about {megabytes:,.0f} MB, the limit is {self.megabytes:,.0f} MB"
        return None


def power(lengths: Sequence[int], values: Sequence[float]) -> float:
    """That of the length which fits the last values best."""
    slope, _ = np.polyfit(np.log2(lengths[-_FITTED:]), np.log2(values[-_FITTED:]), 1)
    return float(slope)


def _next(values: Sequence[float]) -> float:
    growth = values[-1] / values[-2] if len(values) > 1 else 4.0
    return values[-1] * growth
