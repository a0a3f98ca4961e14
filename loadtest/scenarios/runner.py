"""Runs a scenario against a service: open-loop arrivals, locust's statistics and the service's metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

import gevent
from locust.env import Environment

from loadtest.scenarios.definitions import Objective, Phase, PhaseResult, Scenario
from loadtest.scenarios.metrics_endpoint import (
    CountComparison,
    Counts,
    MetricsEndpoint,
    MetricsUnavailableError,
    count_comparison,
    wait_for_matching_counts,
)
from loadtest.scenarios.record import Record
from loadtest.traffic.locust_stats import locust_callback
from loadtest.traffic.open_loop import OpenLoopDriver, Transport
from loadtest.traffic.request_generators import LoadRequest, WorkloadMix
from loadtest.traffic.samples import (
    CLIENT_CANCELLED,
    Sample,
    call_counts,
    first_chunk_latencies,
    latencies,
    rejections,
    summarise_latencies,
)
from loadtest.traffic.transports import TIMEOUT

_POLL_SECONDS = 1.0
_COUNT_TIMEOUT_SECONDS = 5.0  # until the service's metrics are up to date


class UnfinishedCallsError(Exception):
    """Requests did not end in time."""


class ScenarioRunner:
    def __init__(
        self, workload: WorkloadMix, transports: Sequence[Transport[LoadRequest]], metrics: MetricsEndpoint, seed: int
    ) -> None:
        self.record = Record()
        self._metrics, self._models = metrics, [generator.name for generator in workload.generators]
        self._environment = Environment()
        self._environment.create_local_runner()  # keeps the statistics
        self._driver = OpenLoopDriver(
            workload, transports, locust_callback(self._environment, self._record_sample), seed=seed
        )

    def run(self, scenario: Scenario, report_progress: Callable[[str], None]) -> Record:
        record, before = self.record, self._metrics.counts()
        self._driver.begin()
        poller = gevent.spawn(self._poll_gauges)
        try:
            while (phase := scenario.next_phase(record.phase_results)) is not None:
                report_progress(f"{phase.name}: {phase.rate:.3g} requests/s for {phase.seconds:g} s")
                record.phase_results.append(self._phase(phase, scenario.objective))
                report_progress(_describe(record.phase_results[-1]))
        finally:
            poller.kill()
        record.count_comparison = wait_for_matching_counts(
            lambda: self._compare_counts(before), _COUNT_TIMEOUT_SECONDS, gevent.sleep
        )
        record.leftover_slots = self._leftover_slots()
        total = self._environment.stats.total
        record.locust_requests, record.locust_failures = total.num_requests, total.num_failures
        return record

    def _phase(self, phase: Phase, objective: Objective) -> PhaseResult:
        driver, first = self._driver, len(self.record.samples)
        driver.cancel_share = phase.cancel_share
        begin, cpu = driver.now, time.process_time()
        driver.send_arrivals(lambda _: phase.rate, begin + phase.seconds)
        last_sent = driver.now
        if not driver.wait(2 * TIMEOUT):
            raise UnfinishedCallsError(
                f"{driver.in_flight} requests had not ended {2 * TIMEOUT:g} s after the last was sent"
            )
        end, cpu = driver.now, time.process_time() - cpu
        samples = self.record.samples[first:]
        counts, latency = call_counts(samples), latencies(samples)
        in_time = sum(
            sample.is_call and sample.code == "OK" and sample.due + sample.seconds <= last_sent for sample in samples
        )
        return PhaseResult(
            phase=phase,
            begin=begin,
            end=end,
            call_counts=counts,
            answered_per_second=in_time / (last_sent - begin),
            latency=latency,
            rejection=rejections(samples),
            first_chunk=first_chunk_latencies(samples),
            send_delay=summarise_latencies([sample.send_delay for sample in samples if sample.is_call]),
            generator_cores=cpu / (end - begin),
            objective_met=objective.holds(latency, counts),
        )

    def _record_sample(self, sample: Sample, message: str) -> None:
        self.record.samples.append(sample)
        if message:
            self.record.messages[sample.code] = message

    def _poll_gauges(self) -> None:
        while True:
            with suppress(MetricsUnavailableError):  # busy; it is read again at the end
                self.record.gauge_samples += self._metrics.read_gauges(self._models, self._driver.now)
            gevent.sleep(_POLL_SECONDS)

    def _leftover_slots(self) -> float:
        end = time.monotonic() + _COUNT_TIMEOUT_SECONDS
        while True:
            slots = sum(sample.slots_in_use for sample in self._metrics.read_gauges(self._models, 0.0))
            if not slots or time.monotonic() > end:
                return slots
            gevent.sleep(0.2)

    def _compare_counts(self, before: Counts) -> list[CountComparison]:
        server_counts = self._metrics.counts()
        server_counts.subtract(before)
        return [
            count_comparison(
                model,
                Counter(sample.code for sample in self.record.samples if sample.is_call and sample.model == model),
                Counter({code: count for (name, code), count in server_counts.items() if name == model and count}),
                CLIENT_CANCELLED,
            )
            for model in self._models
        ]


def _describe(result: PhaseResult) -> str:
    p95 = "–" if result.latency.p95 is None else f"{result.latency.p95:.0f} ms"
    codes = ", ".join(f"{count} {code}" for code, count in result.call_counts.codes.items())
    return f"  p95 {p95}; {codes}; objective {'met' if result.objective_met else 'missed'}"
