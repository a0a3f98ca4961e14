"""Arrivals that wait for nobody, without a service: whoever is asked here only takes his time."""

from __future__ import annotations

from dataclasses import dataclass

import gevent
import numpy as np
import pytest

from loadtest.traffic.crowd import Crowd, Rate
from loadtest.traffic.samples import LEFT, STEP, Sample
from loadtest.traffic.ways import Outcome, Patience


@dataclass(frozen=True)
class Asked:
    model: str = "slow"
    method: str = "Wait"


class Orders:
    def order(self, way: str) -> Asked:  # noqa: ARG002
        return Asked()


class Slow:
    name = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds, self.under_way, self.most = seconds, 0, 0

    def send(self, order: Asked, patience: Patience | None = None) -> Outcome:  # noqa: ARG002
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        gevent.sleep(self.seconds)
        self.under_way -= 1
        return Outcome(steps=[self.seconds]) if patience is None else Outcome(LEFT)


def arrived(rate: Rate, seconds: float, way: Slow, leaving: float = 0.0) -> list[Sample]:
    samples: list[Sample] = []
    crowd = Crowd(Orders(), [way], lambda sample, _: samples.append(sample), seed=5, leaving=leaving)
    crowd.begin()
    crowd.arrive(rate, seconds)
    assert crowd.wait(30)
    return sorted((each for each in samples if each.is_call), key=lambda each: each.due)


def test_nobody_waits_for_anybodys_answer() -> None:
    way = Slow(1.5)
    calls = arrived(lambda _: 40, 1.0, way)
    assert way.most == len(calls) > 20
    assert all(each.due < 1.0 for each in calls)
    assert all(each.seconds >= 1.5 for each in calls)


def test_arrivals_are_those_of_a_poisson_process() -> None:
    calls = arrived(lambda _: 300, 2.0, Slow(0))
    gaps = np.diff([each.due for each in calls])
    assert len(calls) == pytest.approx(600, rel=0.15)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.15)


def test_a_rate_may_change_and_may_be_nothing() -> None:
    calls = arrived(lambda second: 0 if second < 0.5 else 100, 1.0, Slow(0))
    assert calls[0].due >= 0.5
    assert len(calls) == pytest.approx(50, rel=0.4)


def test_some_leave_and_steps_are_told_apart() -> None:
    samples: list[Sample] = []
    crowd = Crowd(Orders(), [Slow(0)], lambda sample, _: samples.append(sample), seed=5, leaving=0.5)
    for _ in range(100):
        crowd.serve_one()
    left = sum(each.code == LEFT for each in samples)
    assert 35 < left < 65
    assert sum(each.method == STEP for each in samples) == 100 - left
