from __future__ import annotations

import pytest

from service.engine.pace import Pace


def test_nothing_is_said_before_enough_was_seen() -> None:
    pace = Pace()
    assert pace.rate is None
    pace.note(0, 2.0)
    assert pace.rate is None
    pace.note(100, 0.1)
    assert pace.rate is not None


def test_work_takes_as_long_as_it_did() -> None:
    pace = Pace()
    for _ in range(20):
        pace.note(64, 0.05)
    assert pace.rate == pytest.approx(64 / 0.05)


def test_what_was_seen_of_late_counts_most() -> None:
    pace = Pace()
    for _ in range(100):
        pace.note(10, 1.0)
    for _ in range(12):
        pace.note(100, 1.0)
    assert pace.rate is not None
    assert 77 < pace.rate < 100
