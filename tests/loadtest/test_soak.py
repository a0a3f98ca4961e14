"""Evaluation of a soak test."""

from __future__ import annotations

import pytest

from loadtest.soak import ProcessSample, evaluate

CALLS = 1000


def samples(early: tuple[float, int], late: tuple[float, int]) -> list[ProcessSample]:
    """Return a sample at every tenth of the requests; the first tenth is warm-up and ignored."""
    values = [(100.0, 10), *[early] * 8, late, late]
    return [ProcessSample(index * CALLS // 10, *value) for index, value in enumerate(values)]


@pytest.mark.parametrize(
    ("late", "codes", "failures"),
    [
        ((203.9, 80), {"OK": CALLS}, []),
        ((190.0, 70), {"OK": CALLS}, []),
        ((204.2, 80), {"OK": CALLS}, ["memory of texts grew by 2.1%; the maximum is 2%"]),
        ((200.0, 81), {"OK": CALLS}, ["open descriptors of texts grew from 80 to 81"]),
        ((200.0, 80), {"OK": CALLS - 3, "UNAVAILABLE": 3}, ["3 requests failed with UNAVAILABLE"]),
    ],
)
def test_evaluate_reports_growth_and_failures(
    late: tuple[float, int], codes: dict[str, int], failures: list[str]
) -> None:
    rows, reported = evaluate({"texts": samples((200.0, 80), late)}, codes)
    assert reported == failures
    assert rows == [["texts", "200.0 MB", f"{late[0]:.1f} MB", f"{late[0] / 200 - 1:+.2%}", "80", str(late[1])]]
