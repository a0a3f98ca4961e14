"""Data recorded during a scenario."""

from __future__ import annotations

from dataclasses import dataclass, field

from loadtest.scenarios.definitions import PhaseResult
from loadtest.scenarios.metrics_endpoint import CountComparison, GaugeSample
from loadtest.traffic.samples import Sample


@dataclass(slots=True)
class Record:
    samples: list[Sample] = field(default_factory=list)
    messages: dict[str, str] = field(default_factory=dict)  # last message of each code other than OK
    gauge_samples: list[GaugeSample] = field(default_factory=list)
    phase_results: list[PhaseResult] = field(default_factory=list)
    count_comparison: list[CountComparison] = field(default_factory=list)
    leftover_slots: float = 0.0  # in use after the end; expected to be 0
    locust_requests: int = 0
    locust_failures: int = 0
