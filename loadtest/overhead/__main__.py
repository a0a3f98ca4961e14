"""`python -m loadtest.overhead`: measure the overhead of Ray Serve and HAProxy.

latency: a trivial model behind the service compared with a plain grpc.aio server with the same servicer, with 1 and 16
clients. throughput: OPUS-MT and ViT-B/16 served at saturation compared with the engine in process. overload: OPUS-MT at
five times its capacity over gRPC and over HTTP, with the goodput and the latencies of answers and rejections. Rounds
are interleaved; medians, ratios and targets are written to `loadtest/results/overhead.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
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
MIN_GOODPUT, MAX_REJECTED_P95_MS = 0.95, 20.0


def main() -> None:
    options, console = _options(), Console()
    report_progress = lambda text: console.print(text, style="dim")  # noqa: E731
    for part, model in (("latency", latency.TRIVIAL), ("throughput", VIT)):
        if part in options.part:
            model.ensure_exported(_step(report_progress))
    measures = PARTS | {"overload": partial(overload.measure, seconds=options.seconds)}
    for part in options.part:
        with tempfile.TemporaryDirectory() as scratch:
            rows = [asdict(row) for row in measures[part](Path(scratch), options.rounds, report_progress)]
        _save(options.out, part, rows, options.rounds)
        console.print(_table(rows))
    console.print(_table(targets(json.loads(options.out.read_text(encoding="utf-8")))), f"Written: {options.out}")


def _save(file: Path, part: str, rows: list[dict[str, Any]], rounds: int) -> None:
    """Write the results of one part and keep those of the others."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    content |= {part: {"machine": machine(os.cpu_count() or 1), "rounds": rounds, "rows": rows}}
    content["targets"] = targets(content)
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def targets(content: dict[str, Any]) -> list[dict[str, Any]]:
    rows = {part: content[part]["rows"] if part in content else [] for part in PARTS}
    results = []
    p50 = {row["server"]: row["p50_ms"] for row in rows["latency"] if row["callers"] == 1}
    if p50:
        added = p50["headwaiter serve"] - p50["plain grpc.aio"]
        results.append(_target("p50 with one client, ms above the plain server", added, 1.0, added <= 1.0))
    for row in rows["throughput"]:
        ratio = row["ratio_excluding_clients"]
        title = f"{row['model']}: served throughput relative to in process, without the clients' CPU time"
        results.append(_target(title, ratio, 0.9, ratio >= 0.9))
    for row in rows["overload"]:
        results += _overload_targets(row)
    return results


def _overload_targets(row: dict[str, Any]) -> list[dict[str, Any]]:
    where, goodput, rejected = (
        f"at five times the capacity over {row['transport']}",
        row["goodput"],
        row["rejected_p95_ms"],
    )
    accepted, limit = row["answered_p95_ms"], row["normal_p95_ms"] + Limits().max_queue_wait_ms
    return [
        _target(f"goodput {where}, relative to the peak", goodput, MIN_GOODPUT, goodput >= MIN_GOODPUT),
        _target(f"p95 of rejections {where}, ms", rejected, MAX_REJECTED_P95_MS, rejected <= MAX_REJECTED_P95_MS),
        _target(
            f"p95 of accepted requests {where}, ms; limit: normal p95 + `max_queue_wait_ms`",
            accepted,
            limit,
            accepted <= limit,
        ),
    ]


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
    parser.add_argument(
        "--seconds", type=float, default=overload.SECONDS, help="of each measurement under overload (20)"
    )
    parser.add_argument("--out", type=Path, default=FILE, help="file of the results; other parts in it are kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
