"""The service under abuse: its models by task, its metrics, and the memory of its replicas."""

from __future__ import annotations

import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from headwaiter.client.results import Description
from headwaiter.serving.metrics.definitions import PREFIX
from loadtest.service_process import ServiceProcess

IDLE_SECONDS = 60.0
_GAUGES = ("slots_in_use", "queue_depth", "episodes_open")
_ENDED = ("engine_jobs_finished_total", "engine_jobs_failed_total", "engine_jobs_cancelled_total")
_POLICY = "policy"
_TEXT_CLASSIFICATION = "text classification"
_RESET_PEAK = "5"  # of /proc/PID/clear_refs


@dataclass
class Target:
    service: ServiceProcess

    @cached_property
    def descriptions(self) -> dict[str, Description]:
        with self.service.client() as client:
            return {model.name: client.describe(model.name) for model in client.models()}

    @cached_property
    def models(self) -> list[str]:
        return sorted(self.descriptions)

    def model(self, task: str) -> str | None:
        """The model of a task; text classifiers have a task of their own here. None if there is no such model."""
        return next((name for name, item in self.descriptions.items() if _task(item) == task), None)

    def replicas(self) -> dict[str, list[int]]:
        """Process ids of the replicas, by model."""
        return {name: sorted(self.service.replicas(name)) for name in self.models}

    def metrics(self) -> Mapping[tuple[str, str], float]:
        """Samples of the metrics endpoint, summed by name without prefix and by model."""
        totals: defaultdict[tuple[str, str], float] = defaultdict(float)
        for name, labels, value in self._samples():
            totals[name, labels.get("model", "")] += value
        return totals

    def requests_by_code(self) -> Mapping[str, int]:
        """Requests that the service has counted, by status code."""
        totals: defaultdict[str, int] = defaultdict(int)
        for name, labels, value in self._samples():
            if name == "requests_total":
                totals[labels["code"]] += round(value)
        return totals

    def open_work(self) -> dict[str, float]:
        """What is not zero although no request runs: slots, queue, episodes, and jobs that have not ended."""
        metrics = self.metrics()
        remaining: dict[str, float] = {}
        for model in self.models:
            values = {name: metrics.get((name, model), 0.0) for name in _GAUGES}
            if self.descriptions[model].task != _POLICY:  # opening and closing an episode are never counted as ended
                ended = sum(metrics.get((name, model), 0.0) for name in _ENDED)
                values["jobs"] = metrics.get(("engine_jobs_accepted_total", model), 0.0) - ended
            remaining |= {f"{name} of {model}": value for name, value in values.items() if value}
        return remaining

    def wait_until_idle(self, seconds: float = IDLE_SECONDS) -> dict[str, float]:
        """Return the open work once there is none, or after `seconds`."""
        wait_until(lambda: not self.open_work(), seconds)
        return self.open_work()

    def _samples(self) -> list[tuple[str, dict[str, str], float]]:
        with urllib.request.urlopen(self.service.metrics, timeout=30) as response:
            families = text_string_to_metric_families(response.read().decode())
        return [
            (sample.name.removeprefix(PREFIX), dict(sample.labels), sample.value)
            for family in families
            for sample in family.samples
        ]


def _task(description: Description) -> str:
    is_text = description.task == "classification" and "length" in description.limits
    return _TEXT_CLASSIFICATION if is_text else description.task


def wait_until(condition: Callable[[], object], seconds: float, pause: float = 0.25) -> bool:
    """Whether the condition became true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


class PeakMemory:
    """Growth of the resident memory of processes from the start of the block to its peak in the block."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self._processes = processes
        self.growth_mb: dict[str, float] = {}

    def __enter__(self) -> PeakMemory:
        self._before = {name: _memory_mb(pid, "VmRSS") for name, pid in self._processes.items()}
        for pid in self._processes.values():
            Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
        return self

    def __exit__(self, *_: object) -> None:
        for name, pid in self._processes.items():
            with suppress(FileNotFoundError):  # the process has ended, which other checks report
                self.growth_mb[name] = _memory_mb(pid, "VmHWM") - self._before[name]

    @property
    def largest(self) -> tuple[str, float]:
        return max(self.growth_mb.items(), key=lambda item: item[1], default=("no process is left", float("nan")))


def _memory_mb(pid: int, field: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"/proc/{pid}/status has no {field}")
