from __future__ import annotations

import pytest

from headwaiter.engine.throughput import ThroughputEstimator


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
