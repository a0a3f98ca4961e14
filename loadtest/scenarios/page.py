"""What the service says of itself, on its pages of metrics."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from service.metrics.table import GAUGED, PREFIX, REQUESTS

Counts = Counter[tuple[str, str]]
"""By model and code."""
_REQUESTS = f"{PREFIX}{REQUESTS.name}_total"
_GAUGES = {f"{PREFIX}{metric.name}": name for name, metric in GAUGED.items()}
_ABOUT_MODELS = ("Describe", "ListModels")  # not what traffic asks for


class NoPageError(Exception):
    """The page of metrics is not there."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All replicas of a model at one time."""

    second: float
    model: str
    rows_in_use: float
    rows: float
    waiting: float
    estimated_wait: float


class Page:
    """One address for each node."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses

    def counts(self) -> Counts:
        found: Counts = Counter()
        for name, labels, value in self._samples(lambda line: line.startswith(_REQUESTS)):
            if name == _REQUESTS and labels["method"] not in _ABOUT_MODELS:
                found[labels["model"], labels["code"]] += round(value)
        return found

    def look(self, models: Sequence[str], second: float) -> list[Seen]:
        values: defaultdict[tuple[str, str], float] = defaultdict(float)
        for name, labels, value in self._samples(lambda line: line.partition("{")[0] in _GAUGES):
            values[labels["model"], _GAUGES[name]] += value
        return [
            Seen(
                second,
                model,
                *(values[model, name] for name in ("rows_in_use", "rows", "waiting", "estimated_wait_seconds")),
            )
            for model in models
        ]

    def _samples(self, wanted: Callable[[str], bool]) -> list[tuple[str, dict[str, str], float]]:
        lines = "\n".join(line for address in self._addresses for line in _lines(address) if wanted(line)) + "\n"
        return [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(lines)
            for sample in family.samples
        ]


def _lines(address: str) -> list[str]:
    try:
        with urllib.request.urlopen(address, timeout=10) as page:
            return str(page.read().decode()).splitlines()
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise NoPageError(f"no metrics at {address} ({error}); give --metrics http://HOST:PORT/metrics") from error


@dataclass(frozen=True, slots=True)
class Agreement:
    """A model's calls as the callers counted them, and as it did itself."""

    model: str
    called: dict[str, int]  # by code
    counted: dict[str, int]
    agrees: bool


def agreement(model: str, called: Counter[str], counted: Counter[str], left: str) -> Agreement:
    """Who left may have been answered, cancelled, or never have arrived; all others must be found as they ended."""
    spare = called[left]
    agrees = True
    for code in called.keys() | counted.keys():
        if code in (left, "CANCELLED"):
            continue
        surplus = counted[code] - called[code]
        agrees &= 0 <= surplus <= (spare if code in ("OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED") else 0)
    agrees &= sum(called.values()) - spare <= sum(counted.values()) <= sum(called.values())
    return Agreement(model, dict(sorted(called.items())), dict(sorted(counted.items())), agrees)


def eventually_agreed(
    compare: Callable[[], list[Agreement]], seconds: float, sleep: Callable[[float], object] = time.sleep
) -> list[Agreement]:
    """A replica counts a call just after it has answered it: the last may still be missing."""
    end = time.monotonic() + seconds
    while True:
        found = compare()
        if all(each.agrees for each in found) or time.monotonic() > end:
            return found
        sleep(0.2)
