"""Comparison of the servers: medians of rounds, their spread, and Headwaiter's speedup over each peer."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.benchmark_process import spread
from loadtest.peers.benchmark_models import BenchmarkModel
from loadtest.peers.measure import ServerMeasurement
from loadtest.peers.servers import BenchmarkServer
from loadtest.results_file import machine

HEADWAITER = "headwaiter"
_TARGETS = {  # minimum rate and maximum p95, relative to the fastest peer
    "opus-mt-zh-en": (1.5, 0.5),
    "vit-small": (1.5, None),
    "vit-b16": (1.0, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSummary:
    server: str
    description: str
    settings: str
    rounds: int
    rate: float
    rate_spread: float | None
    speedup: float | None  # Headwaiter's rate over this server's, median of rounds
    speedup_spread: float | None
    single_client_p50_ms: float
    p95_at_80_percent_ms: float | None
    memory_mb: float
    startup_seconds: float
    matching_answers: float  # fraction equal to Headwaiter's


def rows(servers: Sequence[BenchmarkServer], measured: Sequence[ServerMeasurement]) -> list[ServerSummary]:
    own = _of(measured, f"{HEADWAITER} grpc")
    return [_row(server, _of(measured, server.name), own) for server in servers if _of(measured, server.name)]


def _row(
    server: BenchmarkServer, measurements: Sequence[ServerMeasurement], own_measurements: Sequence[ServerMeasurement]
) -> ServerSummary:
    ratios = [own.rate / other.rate for own, other in zip(own_measurements, measurements, strict=False) if other.rate]
    compared = bool(ratios) and not server.name.startswith(HEADWAITER)
    expected = own_measurements[0].answers if own_measurements else measurements[0].answers
    matches = [
        expected_answer == answer for expected_answer, answer in zip(expected, measurements[0].answers, strict=True)
    ]
    loaded_p95 = [
        measurement.p95_at_80_percent_ms for measurement in measurements if measurement.p95_at_80_percent_ms is not None
    ]
    return ServerSummary(
        server=server.name,
        description=server.description,
        settings=server.settings,
        rounds=len(measurements),
        rate=_median(measurements, lambda measurement: measurement.rate),
        rate_spread=_spread([measurement.rate for measurement in measurements]),
        speedup=statistics.median(ratios) if compared else None,
        speedup_spread=spread(ratios) if compared else None,
        single_client_p50_ms=_median(measurements, lambda measurement: measurement.single_client_p50_ms),
        p95_at_80_percent_ms=statistics.median(loaded_p95) if loaded_p95 else None,
        memory_mb=_median(measurements, lambda measurement: measurement.memory_mb),
        startup_seconds=_median(measurements, lambda measurement: measurement.startup_seconds),
        matching_answers=sum(matches) / len(matches),
    )


def targets(benchmark_model: str, summaries: Sequence[ServerSummary]) -> list[dict[str, Any]]:
    """Evaluate the targets against the fastest peer; empty without peers."""
    own = next((summary for summary in summaries if summary.server == f"{HEADWAITER} grpc"), None)
    peers = [summary for summary in summaries if not summary.server.startswith(HEADWAITER)]
    if own is None or not peers:
        return []
    best, (min_rate, max_p95) = max(peers, key=lambda summary: summary.rate), _TARGETS[benchmark_model]
    if not best.rate:
        return []
    title = f"{benchmark_model}: rate compared with {best.server}"
    evaluated = [_target(title, own.rate / best.rate, min_rate, at_least=True)]
    if max_p95 is not None and own.p95_at_80_percent_ms and best.p95_at_80_percent_ms:
        title = f"{benchmark_model}: p95 at 80 % of capacity compared with {best.server}"
        evaluated.append(_target(title, own.p95_at_80_percent_ms / best.p95_at_80_percent_ms, max_p95, at_least=False))
    return evaluated


def _target(title: str, measured: float, required: float, *, at_least: bool) -> dict[str, Any]:
    met = measured >= required if at_least else measured <= required
    limit = f"{'at least' if at_least else 'at most'} {required:g}"
    return {"target": title, "required": limit, "measured": round(measured, 3), "result": "met" if met else "missed"}


def content(
    benchmark_model: BenchmarkModel,
    servers: Sequence[BenchmarkServer],
    measured: Sequence[ServerMeasurement],
    seconds: float,
    load: float,
) -> dict[str, Any]:
    summaries = rows(servers, measured)
    return {
        "task": benchmark_model.task,
        "p99_limit_ms": benchmark_model.p99_limit_ms,
        "seconds": seconds,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(os.cpu_count() or 1),
        "load_before": load,
        "rows": [asdict(item) for item in summaries],
        "targets": targets(benchmark_model.name, summaries),
        "measured": [{name: value for name, value in asdict(item).items() if name != "answers"} for item in measured],
    }


def make_table(name: str, p99_limit_ms: float, summaries: Sequence[ServerSummary]) -> Table:
    title = f"{name}: p99 within {p99_limit_ms:g} ms"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("server")
    for head in ("requests/s", "spread", "Headwaiter ÷", "1 client p50", "p95 at 80 %", "MB", "startup s", "matching"):
        table.add_column(head, justify="right")
    for summary in summaries:
        speedup = "–" if summary.speedup is None else f"{summary.speedup:.2f} (× {summary.speedup_spread:.2f})"
        loaded_p95 = "–" if summary.p95_at_80_percent_ms is None else f"{summary.p95_at_80_percent_ms:.0f} ms"
        rate_spread = "–" if summary.rate_spread is None else f"{summary.rate_spread:.2f}"
        table.add_row(
            *(
                summary.server,
                f"{summary.rate:.1f}",
                rate_spread,
                speedup,
                f"{summary.single_client_p50_ms:.1f} ms",
                loaded_p95,
            ),
            *(f"{summary.memory_mb:.0f}", f"{summary.startup_seconds:.1f}", f"{100 * summary.matching_answers:.0f} %"),
        )
    return table


def _spread(rates: Sequence[float]) -> float | None:
    """Return the spread, or None if a round answered nothing."""
    return spread(rates) if min(rates) else None


def _of(measured: Sequence[ServerMeasurement], name: str) -> list[ServerMeasurement]:
    return [measurement for measurement in measured if measurement.server == name]


def _median(measurements: Sequence[ServerMeasurement], value: Callable[[ServerMeasurement], float]) -> float:
    return statistics.median(map(value, measurements))
