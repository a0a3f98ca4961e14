from __future__ import annotations

import math
import time
from concurrent.futures import CancelledError

import pytest

from service.engine.jobs import DeadlineError, Job
from service.engine.line import Line
from service.engine.meters import Meters


class Looked(Job[int]):
    """Counts how often it is looked at."""

    looks = 0

    def is_dead(self, now: float) -> bool:
        Looked.looks += 1
        return super().is_dead(now)


def lined(*deadlines: float) -> tuple[Line[Looked], list[Looked]]:
    line: Line[Looked] = Line(Meters())
    jobs = [Looked(deadline=None if deadline == math.inf else deadline) for deadline in deadlines]
    for job in jobs:
        line.put(job, 1.0)
    return line, jobs


def test_who_is_cancelled_leaves_the_line() -> None:
    line, (first, second, third) = lined(math.inf, math.inf, math.inf)
    second.future.cancel()

    line.drop_dead()

    assert list(line.jobs) == [first, third]
    assert (line.work, line.meters.waiting, line.meters.cancelled) == (2.0, 2, 1)
    with pytest.raises(CancelledError):
        second.future.result()


def test_who_is_late_leaves_the_line_and_is_told() -> None:
    now = time.monotonic()
    line, (late, _, never) = lined(now - 1, now + 600, math.inf)

    line.drop_dead()

    assert late not in line.jobs
    assert len(line.jobs) == 2
    with pytest.raises(DeadlineError):
        late.future.result(0)
    never.future.cancel()
    line.drop_dead()
    assert len(line.jobs) == 1


def test_a_line_that_nobody_left_is_not_looked_through() -> None:
    line, jobs = lined(*[time.monotonic() + 600] * 50)
    before = Looked.looks

    for _ in range(100):
        line.drop_dead()
    jobs[0].succeed(1)  # answered elsewhere is not left

    line.drop_dead()
    assert Looked.looks == before
