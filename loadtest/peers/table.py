"""What was measured, side by side: medians of rounds, their spread, and how many times as much as each peer."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.contest import spread
from loadtest.peers.entrants import Entrant
from loadtest.peers.measure import Measured
from loadtest.peers.weights import Subject
from loadtest.results import machine

OURS = "headwaiter"
_WANTED = {  # of the peer with the highest rate: how many times its rate, and what part of its p95
    "opus-mt-zh-en": (1.5, 0.5),
    "vit-small": (1.5, None),
    "vit-b16": (1.0, None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    entrant: str
    what: str
    settings: str
    rounds: int
    rate: float
    rate_spread: float | None
    times_as_much: float | None  # of ours over it: how many times its rate, the median of rounds
    times_spread: float | None
    alone_p50_ms: float
    usual_p95_ms: float | None
    memory_mb: float
    started_seconds: float
    same_answers: float  # as ours, a share


def rows(entrants: Sequence[Entrant], measured: Sequence[Measured]) -> list[Row]:
    ours = _of(measured, f"{OURS} grpc")
    return [_row(each, _of(measured, each.name), ours) for each in entrants if _of(measured, each.name)]


def _row(entrant: Entrant, found: Sequence[Measured], ours: Sequence[Measured]) -> Row:
    ratios = [mine.rate / theirs.rate for mine, theirs in zip(ours, found, strict=False) if theirs.rate]
    compared = bool(ratios) and not entrant.name.startswith(OURS)
    expected = ours[0].answers if ours else found[0].answers
    same = [mine == theirs for mine, theirs in zip(expected, found[0].answers, strict=True)]
    usual = [each.usual_p95_ms for each in found if each.usual_p95_ms is not None]
    return Row(
        entrant=entrant.name,
        what=entrant.what,
        settings=entrant.settings,
        rounds=len(found),
        rate=_median(found, lambda each: each.rate),
        rate_spread=_spread([each.rate for each in found]),
        times_as_much=statistics.median(ratios) if compared else None,
        times_spread=spread(ratios) if compared else None,
        alone_p50_ms=_median(found, lambda each: each.alone_p50_ms),
        usual_p95_ms=statistics.median(usual) if usual else None,
        memory_mb=_median(found, lambda each: each.memory_mb),
        started_seconds=_median(found, lambda each: each.started_seconds),
        same_answers=sum(same) / len(same),
    )


def targets(subject: str, found: Sequence[Row]) -> list[dict[str, Any]]:
    """Against the peer with the highest rate; none without peers."""
    ours = next((each for each in found if each.entrant == f"{OURS} grpc"), None)
    peers = [each for each in found if not each.entrant.startswith(OURS)]
    if ours is None or not peers:
        return []
    best, (rate, delay) = max(peers, key=lambda each: each.rate), _WANTED[subject]
    if not best.rate:
        return []
    judged = [_target(f"{subject}: rate beside {best.entrant}", ours.rate / best.rate, rate, at_least=True)]
    if delay is not None and ours.usual_p95_ms and best.usual_p95_ms:
        title = f"{subject}: p95 at 80 % of capacity beside {best.entrant}"
        judged.append(_target(title, ours.usual_p95_ms / best.usual_p95_ms, delay, at_least=False))
    return judged


def _target(title: str, measured: float, wanted: float, *, at_least: bool) -> dict[str, Any]:
    met = measured >= wanted if at_least else measured <= wanted
    limit = f"{'at least' if at_least else 'at most'} {wanted:g}"
    return {"target": title, "wanted": limit, "measured": round(measured, 3), "result": "met" if met else "missed"}


def content(
    subject: Subject, entrants: Sequence[Entrant], measured: Sequence[Measured], seconds: float, load: float
) -> dict[str, Any]:
    found = rows(entrants, measured)
    return {
        "task": subject.task,
        "p99_limit_ms": subject.limit_ms,
        "seconds": seconds,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(os.cpu_count() or 1),
        "load_before": load,
        "rows": [asdict(each) for each in found],
        "targets": targets(subject.name, found),
        "measured": [{name: value for name, value in asdict(each).items() if name != "answers"} for each in measured],
    }


def drawn(name: str, limit_ms: float, found: Sequence[Row]) -> Table:
    title = f"{name}: p99 within {limit_ms:g} ms"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("entrant")
    for head in ("calls/s", "spread", "ours ÷", "1 caller p50", "p95 at 80 %", "MB", "start s", "same"):
        table.add_column(head, justify="right")
    for each in found:
        times = "–" if each.times_as_much is None else f"{each.times_as_much:.2f} (× {each.times_spread:.2f})"
        usual = "–" if each.usual_p95_ms is None else f"{each.usual_p95_ms:.0f} ms"
        spread_of = "–" if each.rate_spread is None else f"{each.rate_spread:.2f}"
        table.add_row(
            *(each.entrant, f"{each.rate:.1f}", spread_of, times, f"{each.alone_p50_ms:.1f} ms", usual),
            *(f"{each.memory_mb:.0f}", f"{each.started_seconds:.1f}", f"{100 * each.same_answers:.0f} %"),
        )
    return table


def _spread(rates: Sequence[float]) -> float | None:
    """None where a round carried nothing."""
    return spread(rates) if min(rates) else None


def _of(measured: Sequence[Measured], name: str) -> list[Measured]:
    return [each for each in measured if each.entrant == name]


def _median(found: Sequence[Measured], value: Callable[[Measured], float]) -> float:
    return statistics.median(map(value, found))
