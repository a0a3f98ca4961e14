"""Throughput estimate of an engine under backlog, from which queueing delays are derived, and their calibration."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

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


_MIN_CALIBRATED_SECONDS = 0.05  # shorter waits depend on the length of a step more than on the backlog
_CALIBRATION_ALPHA = 0.05
_MAX_CORRECTION = 4.0


@dataclass(frozen=True, slots=True)
class WaitEstimate:
    """Estimated queueing delay in seconds, and the same without calibration."""

    seconds: float
    uncalibrated: float


class WaitCalibration:
    """Compares estimated with observed waits, and corrects the estimates by their mean ratio. Workers share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._log_ratio = 0.0  # exponentially weighted mean
        self.observed_seconds = self.error_seconds = 0.0  # sums, for the metrics

    def estimate(self, uncalibrated: float) -> WaitEstimate:
        return WaitEstimate(uncalibrated * math.exp(self._log_ratio), uncalibrated)

    def record(self, estimate: WaitEstimate, observed: float) -> None:
        if estimate.uncalibrated < _MIN_CALIBRATED_SECONDS:
            return
        ratio = min(max(observed / estimate.uncalibrated, 1 / _MAX_CORRECTION), _MAX_CORRECTION)
        with self._lock:
            self.observed_seconds += observed
            self.error_seconds += abs(estimate.seconds - observed)
            self._log_ratio += _CALIBRATION_ALPHA * (math.log(ratio) - self._log_ratio)
