"""`python -m loadtest.overhead`: what the way through Ray Serve and HAProxy costs.

A trivial model behind the whole way, beside a plain grpc.aio server with the same servicer: calls per second and
latency with 1 and with 16 callers. OPUS-MT and ViT-B/16: what is served at saturation, beside the engine in process.
OPUS-MT at five times what it answers: what is still answered, how fast, and how fast the rest is refused.
Turns are taken round after round; medians, ratios and targets go to `loadtest/results/overhead.json`.
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

from loadtest import latency, overload, throughput
from loadtest.results import FOLDER, machine
from loadtest.untrained import VIT
from service.config import Limits

PARTS: dict[str, Callable[[Path, int, Callable[[str], None]], Sequence[Any]]] = {
    "latency": latency.measure,
    "throughput": throughput.measure,
    "overload": overload.measure,
}
FILE = FOLDER / "overhead.json"


def main() -> None:
    options, console = _options(), Console()
    tell = lambda text: console.print(text, style="dim")  # noqa: E731
    for model in (latency.TRIVIAL, VIT):
        model.make(_step(tell))
    for part in options.part:
        with tempfile.TemporaryDirectory() as scratch:
            rows = [asdict(row) for row in PARTS[part](Path(scratch), options.rounds, tell)]
        _save(part, rows, options.rounds)
        console.print(_table(rows))
    targets = _targets(json.loads(FILE.read_text(encoding="utf-8")))
    console.print(_table(targets), f"written to {FILE}")


def _save(part: str, rows: list[dict[str, Any]], rounds: int) -> None:
    """At once, beside what was measured of other parts."""
    content = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    content |= {part: {"machine": machine(os.cpu_count() or 1), "rounds": rounds, "rows": rows}}
    content["targets"] = _targets(content)
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _targets(content: dict[str, Any]) -> list[dict[str, Any]]:
    rows = {part: content[part]["rows"] if part in content else [] for part in PARTS}
    found = []
    p50 = {row["way"]: row["p50_ms"] for row in rows["latency"] if row["callers"] == 1}
    if p50:
        added = p50["headwaiter serve"] - p50["plain grpc.aio"]
        found.append(_target("p50 at one caller, ms over the plain server", added, 1.0, added <= 1.0))
    for row in rows["throughput"]:
        share = row["ratio_without_callers"]
        title = f"{row['model']}: served beside in process, callers' CPU left out"
        found.append(_target(title, share, 0.9, share >= 0.9))
    for row in rows["overload"]:
        found.append(_target("goodput at five times the rate", row["goodput"], 0.9, row["goodput"] >= 0.9))
        late, normal = row["answered_p95_ms"], row["normal_p95_ms"] + Limits().wait_ms
        title = "p95 of what is accepted then, ms; normal, and the wait that `wait_ms` allows"
        found.append(_target(title, late, normal, late <= normal))
    return found


def _target(what: str, measured: float, wanted: float, met: bool) -> dict[str, Any]:
    return {"target": what, "wanted": wanted, "measured": round(measured, 3), "result": "met" if met else "missed"}


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(*rows[0], box=SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(f"{value:,.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    return table


def _step(tell: Callable[[str], None]) -> Any:
    @contextmanager
    def step(text: str) -> Iterator[None]:
        tell(text)
        yield

    return step


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtest.overhead", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="that count; one more comes before them")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    return parser.parse_args()


if __name__ == "__main__":
    main()
