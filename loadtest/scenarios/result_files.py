"""Scenario results as JSON, and per second as CSV."""

from __future__ import annotations

import csv
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadtest.results_file import machine
from loadtest.scenarios.definitions import Objective, Scenario, Verdict
from loadtest.scenarios.record import Record
from loadtest.traffic.request_generators import RequestGenerator
from loadtest.traffic.samples import Sample, call_counts, first_chunk_latencies, latencies, summarise_latencies

_MAX_DELAY_SHARE = 0.05  # send delay relative to the latency objective


@dataclass(frozen=True, slots=True)
class SecondStats:
    """Statistics of the requests that were due in one second."""

    second: int
    sent: int
    answered: int
    rejected: int
    cancelled: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    slots_in_use: float | None
    slots: float | None
    queued: float | None


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    scenario: Scenario
    verdict: Verdict
    record: Record
    seconds: list[SecondStats]
    metadata: dict[str, Any]  # models, machine, time and settings

    def warnings(self) -> list[str]:
        """Return reasons to distrust the results."""
        warnings, record = [], self.record
        send_delay = summarise_latencies([sample.send_delay for sample in record.samples if sample.is_call])
        if send_delay.p95 is not None and send_delay.p95 > _MAX_DELAY_SHARE * self.scenario.objective.p95_ms:
            warnings.append(
                f"The load generator was {send_delay.p95:.0f} ms late (p95), which is included in the latencies; run "
                "it on its own core or on another machine."
            )
        warnings += [
            f"The service counted other requests to {comparison.model} than the clients sent; "
            "there may be other clients or lost requests."
            for comparison in record.count_comparison
            if not comparison.agrees
        ]
        if record.leftover_slots:
            warnings.append(f"{record.leftover_slots:g} slots were still in use after the end.")
        return warnings


def scenario_result(
    scenario: Scenario, record: Record, generators: Sequence[RequestGenerator], settings: dict[str, Any]
) -> ScenarioResult:
    models = [
        {
            "name": generator.name,
            **{part: getattr(generator.description, part) for part in ("task", "version", "precision", "device")},
        }
        for generator in generators
    ]
    metadata = {
        "scenario": scenario.name,
        "what": scenario.description,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "client_machine": machine(1),
        "load_before": os.getloadavg()[0],
        "models": models,
        "settings": settings,
    }
    return ScenarioResult(scenario, scenario.verdict(record.phase_results), record, _seconds(record), metadata)


def write_json(scenario_result: ScenarioResult, file: Path) -> None:
    record, objective = scenario_result.record, scenario_result.scenario.objective
    calls = [sample for sample in record.samples if sample.is_call]
    content = scenario_result.metadata | {
        "objective": asdict(objective),
        "verdict": asdict(scenario_result.verdict),
        "warnings": scenario_result.warnings(),
        "totals": asdict(call_counts(calls)),
        "errors": record.messages,
        "phases": [asdict(result) for result in record.phase_results],
        "methods": _by_method(record.samples),
        "generator": {
            "cores": max((result.generator_cores for result in record.phase_results), default=0.0),
            "send_delay_ms": asdict(summarise_latencies([sample.send_delay for sample in calls])),
        },
        "locust": {"requests": record.locust_requests, "failures": record.locust_failures},
        "count_comparison": [asdict(comparison) for comparison in record.count_comparison],
        "slots_in_use_after": record.leftover_slots,
        "seconds": [asdict(second) for second in scenario_result.seconds],
    }
    file.write_text(json.dumps(_rounded(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_csv(scenario_result: ScenarioResult, file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, SecondStats.__dataclass_fields__)
        writer.writeheader()
        writer.writerows(_rounded(asdict(second)) for second in scenario_result.seconds)


def ramp_capacity(file: Path, objective: Objective) -> float | None:
    """Return the capacity that a ramp with the same objective found, or None."""
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return content["verdict"]["rate"] if content["objective"] == asdict(objective) else None


def _by_method(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    groups: defaultdict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.model, sample.method, sample.transport].append(sample)
    return [
        {"model": model, "method": method, "transport": transport, "codes": dict(Counter(item.code for item in group))}
        | {"latency_ms": asdict(latencies(group)), "first_chunk_ms": asdict(first_chunk_latencies(group))}
        for (model, method, transport), group in sorted(groups.items())
    ]


def _seconds(record: Record) -> list[SecondStats]:
    groups: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in record.samples:
        groups[math.floor(sample.due)].append(sample)
    gauge_samples: defaultdict[int, dict[str, tuple[float, float, float]]] = defaultdict(dict)
    for gauge_sample in record.gauge_samples:
        gauge_samples[math.floor(gauge_sample.second)][gauge_sample.model] = (
            gauge_sample.slots_in_use,
            gauge_sample.slots,
            gauge_sample.queued,
        )
    seconds = []
    for second in range(max([*groups, *gauge_samples], default=-1) + 1):
        counts, latency = call_counts(groups[second]), latencies(groups[second])
        gauges: list[float | None] = [None] * 3
        if second in gauge_samples:
            gauges = [sum(column) for column in zip(*gauge_samples[second].values(), strict=True)]
        numbers = counts.sent, counts.answered, counts.rejected, counts.cancelled, counts.failed
        seconds.append(SecondStats(second, *numbers, latency.p50, latency.p95, latency.p99, *gauges))
    return seconds


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.5g}")
        case dict():
            return {name: _rounded(item) for name, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
    return value
