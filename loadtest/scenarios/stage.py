"""Plays a scenario against a service: locust's environment, guests that come as they come, the service's own page."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import gevent
from locust.env import Environment

from loadtest.scenarios.page import Agreement, Counts, NoPageError, Page, agreement, eventually_agreed
from loadtest.scenarios.plan import Done, Objective, Phase, Scenario
from loadtest.scenarios.record import Record
from loadtest.traffic.crowd import Crowd, Way
from loadtest.traffic.guests import Order, Table
from loadtest.traffic.samples import LEFT, Sample, first_pieces, latencies, refusals, tally, times
from loadtest.traffic.telling import teller
from loadtest.traffic.ways import TIMEOUT

_LOOK_SECONDS = 1.0
_COUNTED_WITHIN = 5.0  # seconds, by the service's own page


class UnansweredError(Exception):
    """Calls that never ended."""


class Stage:
    def __init__(self, table: Table, ways: Sequence[Way[Order]], page: Page, seed: int) -> None:
        self.record = Record()
        self._page, self._models = page, [guest.name for guest in table.guests]
        self._environment = Environment()
        self._environment.create_local_runner()  # which keeps the statistics
        self._crowd = Crowd(table, ways, teller(self._environment, self._keep), seed=seed)

    def play(self, scenario: Scenario, tell: Callable[[str], None]) -> Record:
        record, before = self.record, self._page.counts()
        self._crowd.begin()
        looking = gevent.spawn(self._look)
        try:
            while (phase := scenario.next_phase(record.done)) is not None:
                tell(f"{phase.name}: {phase.rate:.3g} calls a second for {phase.seconds:g} s")
                record.done.append(self._phase(phase, scenario.objective))
                tell(_told(record.done[-1]))
        finally:
            looking.kill()
        record.agreement = eventually_agreed(lambda: self._compared(before), _COUNTED_WITHIN, gevent.sleep)
        record.idle_rows = self._rows_left()
        total = self._environment.stats.total
        record.locust_requests, record.locust_failures = total.num_requests, total.num_failures
        return record

    def _phase(self, phase: Phase, objective: Objective) -> Done:
        crowd, first = self._crowd, len(self.record.samples)
        crowd.leaving = phase.leaving
        begin, cpu = crowd.now, time.process_time()
        crowd.arrive(lambda _: phase.rate, begin + phase.seconds)
        sent = crowd.now
        if not crowd.wait(2 * TIMEOUT):
            raise UnansweredError(f"{crowd.under_way} calls had not ended {2 * TIMEOUT:g} s after the last was sent")
        end, cpu = crowd.now, time.process_time() - cpu
        samples = self.record.samples[first:]
        counts, latency = tally(samples), latencies(samples)
        in_time = sum(each.is_call and each.code == "OK" and each.due + each.seconds <= sent for each in samples)
        return Done(
            phase=phase,
            begin=begin,
            end=end,
            tally=counts,
            answered_per_second=in_time / (sent - begin),
            latency=latency,
            refusal=refusals(samples),
            first_piece=first_pieces(samples),
            late=times([each.late for each in samples if each.is_call]),
            generator_cores=cpu / (end - begin),
            within=objective.holds(latency, counts),
        )

    def _keep(self, sample: Sample, message: str) -> None:
        self.record.samples.append(sample)
        if message:
            self.record.messages[sample.code] = message

    def _look(self) -> None:
        while True:
            with suppress(NoPageError):  # busy; it was there at the beginning and will be asked at the end
                self.record.seen += self._page.look(self._models, self._crowd.now)
            gevent.sleep(_LOOK_SECONDS)

    def _rows_left(self) -> float:
        end = time.monotonic() + _COUNTED_WITHIN
        while True:
            rows = sum(seen.rows_in_use for seen in self._page.look(self._models, 0.0))
            if not rows or time.monotonic() > end:
                return rows
            gevent.sleep(0.2)

    def _compared(self, before: Counts) -> list[Agreement]:
        counted = self._page.counts()
        counted.subtract(before)
        return [
            agreement(
                model,
                Counter(each.code for each in self.record.samples if each.is_call and each.model == model),
                Counter({code: count for (name, code), count in counted.items() if name == model and count}),
                LEFT,
            )
            for model in self._models
        ]


def _told(done: Done) -> str:
    p95 = "–" if done.latency.p95 is None else f"{done.latency.p95:.0f} ms"
    codes = ", ".join(f"{count} {code}" for code, count in done.tally.codes.items())
    return f"  p95 {p95}; {codes}; {'within' if done.within else 'beyond'} the objective"
