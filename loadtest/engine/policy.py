"""Policy benchmark: step time early and late in an episode, which the KV cache should keep almost equal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from loadtest.benchmark_process import BackendTimings, spread
from loadtest.engine.benchmark_part import BenchmarkOptions, BenchmarkPart, Workload
from loadtest.engine.measurements import Measurement, PolicyMeasurement
from loadtest.random_models import POLICY

POSITIONS = (5, 100)
_EPISODES = 60


class Policy(BenchmarkPart):
    name = "policy"
    description = (
        "Decision Transformer (d 128, 3 layers, 1 head, state 17, action 6), random weights, one step of an episode"
    )
    module = "loadtest.engine.policy_workers"
    backends = ("headwaiter fp32",)
    models = (POLICY,)
    row = PolicyMeasurement

    def workloads(self, options: BenchmarkOptions) -> list[Workload]:  # noqa: ARG002
        task = {"model": POLICY.name, "episodes": _EPISODES, "positions": POSITIONS}
        return [Workload("episodes", f"{_EPISODES} episodes of {max(POSITIONS)} steps", task, 7.0, 2.0)]

    def rows(self, workload: Workload, timings: Sequence[BackendTimings], when: str) -> list[Measurement]:
        return [
            _row(timing, index, workload.task["episodes"], when)
            for timing in timings
            for index in range(len(POSITIONS))
        ]


def _row(timings: BackendTimings, index: int, episodes: int, when: str) -> PolicyMeasurement:
    medians = [statistics.median(round_[index]) for round_ in timings.answers]
    return PolicyMeasurement(
        backend=timings.backend,
        settings=timings.settings,
        rounds=len(medians),
        spread=spread(medians),
        when=when,
        position=POSITIONS[index],
        steps=episodes * len(medians),
        milliseconds=statistics.median(medians),
    )
