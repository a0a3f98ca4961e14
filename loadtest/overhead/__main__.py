"""`python -m loadtest.overhead`: measure the overhead of Ray Serve and HAProxy.

latency: a trivial model behind the service compared with a plain grpc.aio server with the same servicer, with 1 and 16
clients. throughput: OPUS-MT and ViT-B/16 served at saturation compared with the engine in process. overload: OPUS-MT at
five times its capacity, with the goodput and the latencies of answers and rejections. Rounds are interleaved; medians,
ratios and targets are written to `loadtest/results/overhead.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headwaiter.engine.settings import Limits
from loadtest.overhead import latency, overload, throughput
from loadtest.random_models import VIT
from loadtest.results_file import FOLDER, machine

PARTS: dict[str, Callable[[Path, int, Callable[[str], None]], Sequence[Any]]] = {
    "latency": latency.measure,
    "throughput": throughput.measure,
    "overload": overload.measure,
}
FILE = FOLDER / "overhead.json"


def main() -> None:
    options, console = _options(), Console()
    report_progress = lambda text: console.print(text, style="dim")  # noqa: E731
    for model in (latency.TRIVIAL, VIT):
        model.ensure_exported(_step(report_progress))
    for part in options.part:
        with tempfile.TemporaryDirectory() as scratch:
            rows = [asdict(row) for row in PARTS[part](Path(scratch), options.rounds, report_progress)]
        _save(part, rows, options.rounds)
        console.print(_table(rows))
    targets = _targets(json.loads(FILE.read_text(encoding="utf-8")))
    console.print(_table(targets), f"Written: {FILE}")


def _save(part: str, rows: list[dict[str, Any]], rounds: int) -> None:
    """Write the results of one part and keep those of the others."""
    content = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    content |= {part: {"machine": machine(os.cpu_count() or 1), "rounds": rounds, "rows": rows}}
    content["targets"] = _targets(content)
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _targets(content: dict[str, Any]) -> list[dict[str, Any]]:
    rows = {part: content[part]["rows"] if part in content else [] for part in PARTS}
    targets = []
    p50 = {row["server"]: row["p50_ms"] for row in rows["latency"] if row["callers"] == 1}
    if p50:
        added = p50["headwaiter serve"] - p50["plain grpc.aio"]
        targets.append(_target("p50 with one client, ms above the plain server", added, 1.0, added <= 1.0))
    for row in rows["throughput"]:
        ratio = row["ratio_excluding_clients"]
        title = f"{row['model']}: served throughput relative to in process, without the clients' CPU time"
        targets.append(_target(title, ratio, 0.9, ratio >= 0.9))
    for row in rows["overload"]:
        targets.append(_target("goodput at five times the capacity", row["goodput"], 0.9, row["goodput"] >= 0.9))
        p95, limit = row["answered_p95_ms"], row["normal_p95_ms"] + Limits().max_queue_wait_ms
        title = "p95 of accepted requests under overload, ms; limit: normal p95 + `max_queue_wait_ms`"
        targets.append(_target(title, p95, limit, p95 <= limit))
    return targets


def _target(title: str, measured: float, required: float, met: bool) -> dict[str, Any]:
    return {"target": title, "required": required, "measured": round(measured, 3), "result": "met" if met else "missed"}


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(*rows[0], box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def _step(report_progress: Callable[[str], None]) -> Any:
    @contextmanager
    def step(text: str) -> Iterator[None]:
        report_progress(text)
        yield

    return step


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one warm-up round (3)")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to run (all)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
