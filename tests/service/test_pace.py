from __future__ import annotations

import pytest

from service.engine.pace import Pace


def test_nothing_is_said_before_enough_was_seen() -> None:
    pace = Pace()
    assert pace.seconds_for(10) is None
    pace.note(0, 2.0)
    assert pace.seconds_for(10) is None
    pace.note(100, 0.1)
    assert pace.seconds_for(0) == 0


def test_work_takes_as_long_as_it_did() -> None:
    pace = Pace()
    for _ in range(20):
        pace.note(64, 0.05)
    assert pace.seconds_for(128) == pytest.approx(0.1)


def test_what_was_seen_of_late_counts_most() -> None:
    pace = Pace()
    for _ in range(100):
        pace.note(10, 1.0)
    for _ in range(12):
        pace.note(100, 1.0)
    wait = pace.seconds_for(100)
    assert wait is not None
    assert 1.0 < wait < 1.3
