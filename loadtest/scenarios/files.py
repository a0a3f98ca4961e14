"""A scenario's outcome as JSON and as CSV, second by second."""

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

from loadtest.results import machine
from loadtest.scenarios.plan import Objective, Scenario, Verdict
from loadtest.scenarios.record import Record
from loadtest.traffic.guests import Guest
from loadtest.traffic.samples import Sample, Times, latencies, tally, times

_LATE = 0.05  # of the objective


@dataclass(frozen=True, slots=True)
class Second:
    """By when calls were due."""

    second: int
    sent: int
    answered: int
    refused: int
    left: int
    failed: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    rows_in_use: float | None
    rows: float | None
    waiting: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    scenario: Scenario
    verdict: Verdict
    record: Record
    seconds: list[Second]
    about: dict[str, Any]  # what was served, where and when

    def doubts(self) -> list[str]:
        """What speaks against these numbers."""
        found, record = [], self.record
        late = times([each.late for each in record.samples if each.is_call])
        if late.p95 is not None and late.p95 > _LATE * self.scenario.objective.p95_ms:
            found.append(
                f"The load generator itself was {late.p95:.0f} ms late (p95), and that is in the latencies: it needs a "
                "core to itself, or another machine."
            )
        found += [
            f"{each.model} counted other calls than its callers made: somebody else uses it, or calls were lost."
            for each in record.agreement
            if not each.agrees
        ]
        if record.idle_rows:
            found.append(f"{record.idle_rows:g} rows were still in use after the end.")
        return found


def outcome(scenario: Scenario, record: Record, guests: Sequence[Guest], settings: dict[str, Any]) -> Outcome:
    models = [
        {"name": each.name, **{part: getattr(each.about, part) for part in ("task", "version", "precision", "device")}}
        for each in guests
    ]
    about = {
        "scenario": scenario.name,
        "what": scenario.what,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine_of_the_callers": machine(1),
        "load_before": os.getloadavg()[0],
        "models": models,
        "settings": settings,
    }
    return Outcome(scenario, scenario.verdict(record.done), record, _seconds(record), about)


def write_json(outcome: Outcome, file: Path) -> None:
    record, objective = outcome.record, outcome.scenario.objective
    calls = [each for each in record.samples if each.is_call]
    content = outcome.about | {
        "objective": asdict(objective),
        "verdict": asdict(outcome.verdict),
        "doubts": outcome.doubts(),
        "totals": asdict(tally(calls)),
        "errors": record.messages,
        "phases": [asdict(each) for each in record.done],
        "methods": _by_method(record.samples),
        "generator": {
            "cores": max((each.generator_cores for each in record.done), default=0.0),
            "late_ms": asdict(times([each.late for each in calls])),
        },
        "locust": {"requests": record.locust_requests, "failures": record.locust_failures},
        "service_counted": [asdict(each) for each in record.agreement],
        "rows_in_use_afterwards": record.idle_rows,
        "seconds": [asdict(each) for each in outcome.seconds],
    }
    file.write_text(json.dumps(_rounded(content), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_csv(outcome: Outcome, file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, Second.__dataclass_fields__)
        writer.writeheader()
        writer.writerows(_rounded(asdict(each)) for each in outcome.seconds)


def carried(file: Path, objective: Objective) -> float | None:
    """What a ramp found, where there was one with the same objective."""
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return content["verdict"]["rate"] if content["objective"] == asdict(objective) else None


def _by_method(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    groups: defaultdict[tuple[str, str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.model, sample.method, sample.way].append(sample)
    return [
        {"model": model, "method": method, "way": way, "codes": dict(Counter(each.code for each in group))}
        | {"latency_ms": asdict(latencies(group)), "first_piece_ms": asdict(_first(group))}
        for (model, method, way), group in sorted(groups.items())
    ]


def _first(samples: Sequence[Sample]) -> Times:
    return times([each.first for each in samples if each.first is not None])


def _seconds(record: Record) -> list[Second]:
    groups: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in record.samples:
        groups[math.floor(sample.due)].append(sample)
    seen: defaultdict[int, dict[str, tuple[float, float, float]]] = defaultdict(dict)
    for each in record.seen:
        seen[math.floor(each.second)][each.model] = each.rows_in_use, each.rows, each.waiting
    found = []
    for second in range(max([*groups, *seen], default=-1) + 1):
        counts, latency = tally(groups[second]), latencies(groups[second])
        rows: list[float | None] = [None] * 3
        if second in seen:
            rows = [sum(column) for column in zip(*seen[second].values(), strict=True)]
        numbers = counts.sent, counts.answered, counts.refused, counts.left, counts.failed
        found.append(Second(second, *numbers, latency.p50, latency.p95, latency.p99, *rows))
    return found


def _rounded(value: Any) -> Any:
    match value:
        case float():
            return float(f"{value:.5g}")
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return [_rounded(each) for each in value]
    return value
