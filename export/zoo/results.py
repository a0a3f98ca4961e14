"""`python -m export.zoo.results [NAME …]`: trains systems, all unless named, and writes what they reached.

results.json is the record: a system that is trained anew replaces its own row, and RESULTS.md is written from it. What
was trained here before, by the recipe as it is, is not trained again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from export.errors import SourceError
from export.zoo.cli import CHECKPOINTS
from export.zoo.outcome import Outcome, kept
from export.zoo.registry import System, find, systems

RECORD, PAGE = Path(__file__).with_name("results.json"), Path(__file__).with_name("RESULTS.md")
_COLUMNS = (
    "system",
    "tier",
    "learns from",
    "metric",
    "bar",
    "measured",
    "reached",
    "seconds",
    "of processor",
    "parameters",
    "attention fused",
    "seed",
    "day",
    "recipe",
)
_HOW = """`headwaiter zoo train NAME`, or `make zoo` for all; `python -m export.zoo.results NAME` renews a row. The
record behind this page, with the settings of every training, is [results.json](results.json).

Every number was measured on held-out data, through the exported ONNX package in the in-process engine, after one
training with that seed. Tier one trains fully, tier two for a minute or two, five at most. Seconds are of training, on
shared x86 cores, whatever else they did; beside them what one thread took of a processor, which is what an idle core
would need. The recipe is *as now* where data, steps, batch, rate and sizes of that training are today's. A dash is what
is not known, or a system without a result."""


def main() -> int:
    """As many at a time as there are cores, a thread each: small models gain little from more."""
    try:
        chosen = [find(name) for name in sys.argv[1:]] or list(systems().values())
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    failures = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for system, complaint in zip(chosen, pool.map(_train, chosen), strict=True):
            sys.stdout.write(f"{system.name}: {complaint or 'trained'}\n")
            failures += complaint is not None
            outcome = kept(CHECKPOINTS / system.name)
            if outcome is not None and outcome.is_by(system.recipe):
                record(outcome)
    return 1 if failures else 0


def _train(system: System) -> str | None:
    """What went wrong, if anything did."""
    outcome = kept(CHECKPOINTS / system.name)
    if outcome is not None and outcome.is_by(system.recipe):
        return None
    log = CHECKPOINTS / f"{system.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).parent / "headwaiter"), "zoo", "train", system.name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as stream:
        code = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environment).returncode
    return None if code == 0 else f"ended with {code}: {log.read_text(encoding='utf-8').strip().splitlines()[-1]}"


def recorded(file: Path = RECORD) -> dict[str, Outcome]:
    """By the name of the system."""
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: Outcome(**row) for name, row in rows.items()}


def record(outcome: Outcome, file: Path = RECORD, page: Path = PAGE) -> None:
    """In place of what the same system reached before; the rows of others stay as they are."""
    rows = {**recorded(file), outcome.system: outcome}
    in_order = {name: asdict(rows[name]) for name in systems() if name in rows}
    file.write_text(json.dumps(in_order, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    page.write_text(written(rows), encoding="utf-8")


def written(rows: dict[str, Outcome]) -> str:
    """The page."""
    lines = (_line(system, rows.get(name)) for name, system in systems().items())
    return "\n".join(["# What the zoo learns", "", _HOW, "", *_table(lines), ""])


def _table(lines: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (_COLUMNS, ("---",) * len(_COLUMNS), *lines)]


def _line(system: System, outcome: Outcome | None) -> tuple[str, ...]:
    recipe = system.recipe
    told = (system.name, str(recipe.tier), recipe.data.name)
    if outcome is None:
        return (*told, recipe.data.metric, f"{recipe.bar:g}", *("–",) * (len(_COLUMNS) - 5))
    return (
        *told,
        outcome.metric,
        f"{recipe.bar:g}",
        f"{outcome.value:.3f}",
        "yes" if replace(outcome, bar=recipe.bar).reached else "no",
        f"{outcome.seconds:.0f}",
        "–" if outcome.processor is None else f"{outcome.processor:.0f}",
        f"{outcome.parameters:,}",
        outcome.fused,
        str(outcome.seed),
        outcome.day,
        "as now" if outcome.is_by(recipe) else "changed since",
    )


if __name__ == "__main__":
    sys.exit(main())
