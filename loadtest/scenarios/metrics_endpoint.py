"""Reads request counts and gauges from the Prometheus endpoints of the service."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from headwaiter.serving.metrics.definitions import ENGINE_GAUGES, PREFIX, REQUESTS

Counts = Counter[tuple[str, str]]
"""By model and code."""
_REQUESTS = f"{PREFIX}{REQUESTS.name}_total"
_GAUGES = {f"{PREFIX}{metric.name}": name for name, metric in ENGINE_GAUGES.items()}
_EXCLUDED_METHODS = ("Describe", "ListModels")  # not part of the load


class MetricsUnavailableError(Exception):
    """The metrics endpoint does not answer."""


@dataclass(frozen=True, slots=True)
class GaugeSample:
    """Gauges of a model, summed over its replicas, at one time."""

    second: float
    model: str
    slots_in_use: float
    slots: float
    queued: float
    estimated_wait: float


class MetricsEndpoint:
    """The metrics endpoints of a service, one address per node."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def counts(self) -> Counts:
        counts: Counts = Counter()
        for name, labels, value in self._samples(lambda line: line.startswith(_REQUESTS)):
            if name == _REQUESTS and labels["method"] not in _EXCLUDED_METHODS:
                counts[labels["model"], labels["code"]] += round(value)
        return counts

    def read_gauges(self, models: Sequence[str], second: float) -> list[GaugeSample]:
        values: defaultdict[tuple[str, str], float] = defaultdict(float)
        for name, labels, value in self._samples(lambda line: line.partition("{")[0] in _GAUGES):
            values[labels["model"], _GAUGES[name]] += value
        return [
            GaugeSample(
                second,
                model,
                *(values[model, name] for name in ("slots_in_use", "slots", "waiting", "estimated_wait_seconds")),
            )
            for model in models
        ]

    def _samples(self, is_relevant: Callable[[str], bool]) -> list[tuple[str, dict[str, str], float]]:
        lines = "\n".join(line for address in self._addresses for line in _lines(address) if is_relevant(line)) + "\n"
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(lines)
            for sample in family.samples
        ]


def _lines(address: str) -> list[str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            return str(response.read().decode()).splitlines()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise MetricsUnavailableError(
            f"no metrics at {address} ({error}); set --metrics http://HOST:PORT/metrics"
        ) from error


@dataclass(frozen=True, slots=True)
class CountComparison:
    """Requests to a model as counted by the clients and by the service."""

    model: str
    client_counts: dict[str, int]  # by code
    server_counts: dict[str, int]
    agrees: bool


def count_comparison(
    model: str, client_counts: Counter[str], server_counts: Counter[str], cancelled: str
) -> CountComparison:
    """Compare the counts by code.

    A request cancelled by the client may have been answered, cancelled or never received; all others must match.
    """
    spare = client_counts[cancelled]
    agrees = True
    for code in client_counts.keys() | server_counts.keys():
        if code in (cancelled, "CANCELLED"):
            continue
        surplus = server_counts[code] - client_counts[code]
        agrees &= 0 <= surplus <= (spare if code in ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED") else 0)
    agrees &= sum(client_counts.values()) - spare <= sum(server_counts.values()) <= sum(client_counts.values())
    return CountComparison(model, dict(sorted(client_counts.items())), dict(sorted(server_counts.items())), agrees)


def wait_for_matching_counts(
    compare: Callable[[], list[CountComparison]], seconds: float, sleep: Callable[[float], object] = time.sleep
) -> list[CountComparison]:
    """Compare until the counts agree or `seconds` have passed; replicas count a request just after answering it."""
    end = time.monotonic() + seconds
    while True:
        comparisons = compare()
        if all(comparison.agrees for comparison in comparisons) or time.monotonic() > end:
            return comparisons
        sleep(0.2)
