from __future__ import annotations

import pytest

from headwaiter.engine.throughput import ThroughputEstimator, WaitCalibration


def test_rate_too_few_observations_is_none() -> None:
    throughput = ThroughputEstimator()
    assert throughput.rate is None
    throughput.record(0, 2.0)
    assert throughput.rate is None
    throughput.record(100, 0.1)
    assert throughput.rate is not None


def test_rate_constant_work_equals_work_per_second() -> None:
    throughput = ThroughputEstimator()
    for _ in range(20):
        throughput.record(64, 0.05)
    assert throughput.rate == pytest.approx(64 / 0.05)


def test_rate_changed_speed_follows_recent_observations() -> None:
    throughput = ThroughputEstimator()
    for _ in range(100):
        throughput.record(10, 1.0)
    for _ in range(12):
        throughput.record(100, 1.0)
    assert throughput.rate is not None
    assert 77 < throughput.rate < 100


def test_calibration_constant_ratio_is_learned_and_the_error_recorded() -> None:
    calibration = WaitCalibration()
    assert calibration.estimate(2.0).seconds == 2.0
    for _ in range(200):
        calibration.record(calibration.estimate(2.0), 1.0)
    assert calibration.estimate(2.0).seconds == pytest.approx(1.0, rel=0.01)
    assert calibration.observed_seconds == pytest.approx(200)
    assert 0 < calibration.error_seconds < 20, "only the first estimates were wrong"


def test_calibration_short_waits_and_outliers_have_little_effect() -> None:
    calibration = WaitCalibration()
    calibration.record(calibration.estimate(0.001), 1.0)
    assert calibration.estimate(1.0).seconds == 1.0
    calibration.record(calibration.estimate(1.0), 1e6)
    assert calibration.estimate(1.0).seconds < 1.1
