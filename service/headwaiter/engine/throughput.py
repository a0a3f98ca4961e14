"""Throughput estimate of an engine under backlog, from which queueing delays are derived."""

from __future__ import annotations

_HALF_LIFE_SECONDS = 3.0  # of busy time, after which an observation has half its weight

_MIN_OBSERVED_SECONDS = 0.5  # the first steps start many jobs and finish none


class ThroughputEstimator:
    """Exponentially decayed average of work per second."""

    def __init__(self) -> None:
        self._work = self._seconds = 0.0

    def record(self, work: float, seconds: float) -> None:
        decay = 0.5 ** (seconds / _HALF_LIFE_SECONDS)
        self._work, self._seconds = decay * self._work + work, decay * self._seconds + seconds

    @property
    def rate(self) -> float | None:
        """Work per second, or None until enough has been observed."""
        if not self._work or self._seconds < _MIN_OBSERVED_SECONDS:
            return None
        return self._work / self._seconds
