"""What a soak is judged by."""

from __future__ import annotations

import pytest

from loadtest.soak import Sample, judged

CALLS = 1000


def samples(early: tuple[float, int], late: tuple[float, int]) -> list[Sample]:
    """One at every hundredth call; the first tenth is warming up and does not count."""
    seen = [(100.0, 10), *[early] * 8, late, late]
    return [Sample(index * CALLS // 10, *each) for index, each in enumerate(seen)]


@pytest.mark.parametrize(
    ("late", "codes", "wrong"),
    [
        ((203.9, 80), {"OK": CALLS}, []),
        ((190.0, 70), {"OK": CALLS}, []),
        ((204.2, 80), {"OK": CALLS}, ["texts grew by 2.1% and 2% is allowed"]),
        ((200.0, 81), {"OK": CALLS}, ["texts went from 80 open descriptors to 81"]),
        ((200.0, 80), {"OK": CALLS - 3, "UNAVAILABLE": 3}, ["3 calls ended with UNAVAILABLE"]),
    ],
)
def test_growth_and_failures_are_told(late: tuple[float, int], codes: dict[str, int], wrong: list[str]) -> None:
    rows, found = judged({"texts": samples((200.0, 80), late)}, codes)
    assert found == wrong
    assert rows == [["texts", "200.0 MB", f"{late[0]:.1f} MB", f"{late[0] / 200 - 1:+.2%}", "80", str(late[1])]]
