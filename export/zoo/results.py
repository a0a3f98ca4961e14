"""`python -m export.zoo.results`: trains every system and writes RESULTS.md. What was trained before is not again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from export.zoo.cli import CHECKPOINTS
from export.zoo.outcome import Outcome, kept
from export.zoo.registry import System, systems

_COLUMNS = (
    "system",
    "tier",
    "learns from",
    "metric",
    "bar",
    "measured",
    "reached",
    "seconds",
    "parameters",
    "attention fused",
)
_HOW = """Every number was measured on held-out data, through the exported ONNX package in the in-process engine.
Tier one trains fully, tier two for a minute or two. Seconds are of training, whatever else the machine did; a dash is a
system that was not trained there."""
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    """Two at a time, a thread each: small models gain little from more."""
    chosen = [each for name, each in systems().items() if name in sys.argv[1:] or not sys.argv[1:]]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, code in zip((each.name for each in chosen), pool.map(_train, chosen), strict=True):
            sys.stdout.write(f"{name}: {'trained' if code == 0 else f'ended with {code}'}\n")
            RESULTS.write_text(page(systems().values()), encoding="utf-8")


def _train(system: System) -> int:
    if kept(system, CHECKPOINTS / system.name) is not None:
        return 0
    log = CHECKPOINTS / f"{system.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).parent / "headwaiter"), "zoo", "train", system.name]
    with log.open("w") as stream:
        return subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "1"}
        ).returncode


def page(entries: Iterable[System]) -> str:
    rows = [_row(each, kept(each, CHECKPOINTS / each.name)) for each in entries]
    return "\n".join(
        [
            "# What the zoo learns",
            "",
            f"`headwaiter zoo train NAME`, or `make zoo` for all; {os.cpu_count()} cores ({platform.machine()}).",
            _HOW,
            "",
            f"| {' | '.join(_COLUMNS)} |",
            "|---" * len(_COLUMNS) + "|",
            *rows,
            "",
        ]
    )


def _row(system: System, outcome: Outcome | None) -> str:
    recipe = system.recipe
    known = ("–",) * 6
    if outcome is not None:
        known = (
            outcome.metric,
            f"{outcome.value:.3f}",
            "yes" if outcome.reached else "no",
            f"{outcome.seconds:.0f}",
            f"{outcome.parameters:,}",
            outcome.fused,
        )
    metric, value, reached, *rest = known
    cells = (system.name, str(recipe.tier), recipe.data.name, metric, f"{recipe.bar:g}", value, reached, *rest)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
