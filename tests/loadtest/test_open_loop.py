"""Open-loop arrivals against a fake transport that only sleeps."""

from __future__ import annotations

from dataclasses import dataclass

import gevent
import numpy as np
import pytest

from loadtest.traffic.open_loop import OpenLoopDriver, Rate
from loadtest.traffic.samples import CLIENT_CANCELLED, STEP, Sample
from loadtest.traffic.transports import CallResult, CancelAfter


@dataclass(frozen=True)
class FakeRequest:
    model: str = "slow"
    method: str = "Wait"


class FixedSource:
    def request(self, transport: str) -> FakeRequest:  # noqa: ARG002
        return FakeRequest()


class SleepingTransport:
    name = "slow"

    def __init__(self, seconds: float) -> None:
        self.seconds, self.in_flight, self.max_in_flight = seconds, 0, 0

    def send(self, request: FakeRequest, cancel_after: CancelAfter | None = None) -> CallResult:  # noqa: ARG002
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        gevent.sleep(self.seconds)
        self.in_flight -= 1
        return CallResult(steps=[self.seconds]) if cancel_after is None else CallResult(CLIENT_CANCELLED)


def send_arrivals(rate: Rate, seconds: float, transport: SleepingTransport, cancel_share: float = 0.0) -> list[Sample]:
    samples: list[Sample] = []
    driver = OpenLoopDriver(
        FixedSource(), [transport], lambda sample, _: samples.append(sample), seed=5, cancel_share=cancel_share
    )
    driver.begin()
    driver.send_arrivals(rate, seconds)
    assert driver.wait(30)
    return sorted((call for call in samples if call.is_call), key=lambda call: call.due)


def test_open_loop_arrivals_do_not_wait_for_answers() -> None:
    transport = SleepingTransport(1.5)
    calls = send_arrivals(lambda _: 40, 1.0, transport)
    assert transport.max_in_flight == len(calls) > 20
    assert all(call.due < 1.0 for call in calls)
    assert all(call.seconds >= 1.5 for call in calls)


def test_open_loop_arrivals_are_poisson() -> None:
    calls = send_arrivals(lambda _: 300, 2.0, SleepingTransport(0))
    gaps = np.diff([call.due for call in calls])
    assert len(calls) == pytest.approx(600, rel=0.15)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.15)


def test_open_loop_rate_may_change_and_be_zero() -> None:
    calls = send_arrivals(lambda second: 0 if second < 0.5 else 100, 1.0, SleepingTransport(0))
    assert calls[0].due >= 0.5
    assert len(calls) == pytest.approx(50, rel=0.4)


def test_open_loop_cancel_share_and_steps_are_sampled() -> None:
    samples: list[Sample] = []
    driver = OpenLoopDriver(
        FixedSource(), [SleepingTransport(0)], lambda sample, _: samples.append(sample), seed=5, cancel_share=0.5
    )
    for _ in range(100):
        driver.send_one()
    cancelled = sum(call.code == CLIENT_CANCELLED for call in samples)
    assert 35 < cancelled < 65
    assert sum(call.method == STEP for call in samples) == 100 - cancelled
