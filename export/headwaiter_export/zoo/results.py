"""Train architectures and record the results: `python -m headwaiter_export.zoo.results [NAME …]` (default: all).

results.json is the source of RESULTS.md; a new run replaces the entry of its architecture. Architectures that were
already trained here with the current recipe are not trained again.
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

from headwaiter_export.errors import SourceError
from headwaiter_export.zoo.cli import CHECKPOINTS
from headwaiter_export.zoo.registry import Architecture, architectures, find_architecture
from headwaiter_export.zoo.training_result import TrainingResult, load_result

RESULTS_JSON, RESULTS_PAGE = Path(__file__).with_name("results.json"), Path(__file__).with_name("RESULTS.md")
_COLUMNS = (
    "architecture",
    "tier",
    "dataset",
    "metric",
    "target",
    "measured",
    "target reached",
    "seconds",
    "CPU seconds",
    "parameters",
    "fused attention",
    "seed",
    "date",
    "recipe",
)
_PREAMBLE = """Reproduce one row with `python -m headwaiter_export.zoo.results NAME` and all rows with `make zoo`. The
data behind this page, with the settings of every training run, is in [results.json](results.json).

Metrics are measured on held-out data, through the exported ONNX package in the in-process engine, after one training
run with the given seed. Tier 1 runs train to convergence; tier 2 runs take a minute or two, five at most. *Seconds* is
the wall time of training on shared x86 cores; *CPU seconds* is the CPU time of its single thread, which is the time an
idle core would need. The recipe is *current* if dataset, steps, batch size, learning rate and sizes of the run equal
those of the current code. A dash means unknown, or no result yet."""


def main() -> int:
    """Train one architecture per core in parallel, each with one thread, because small models gain little from more."""
    try:
        selected = [find_architecture(name) for name in sys.argv[1:]] or list(architectures().values())
    except SourceError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    failures = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for architecture, error_message in zip(selected, pool.map(_train, selected), strict=True):
            sys.stdout.write(f"{architecture.name}: {error_message or 'trained'}\n")
            failures += error_message is not None
            training_result = load_result(CHECKPOINTS / architecture.name)
            if training_result is not None and training_result.matches_recipe(architecture.recipe):
                save_result(training_result)
    return 1 if failures else 0


def _train(architecture: Architecture) -> str | None:
    """Train unless a current result exists; return an error message if training failed."""
    training_result = load_result(CHECKPOINTS / architecture.name)
    if training_result is not None and training_result.matches_recipe(architecture.recipe):
        return None
    log = CHECKPOINTS / f"{architecture.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [str(Path(sys.executable).parent / "headwaiter"), "zoo", "train", architecture.name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("w") as stream:
        code = subprocess.run(command, stdout=stream, stderr=subprocess.STDOUT, env=environment).returncode
    return (
        None
        if code == 0
        else f"failed with exit code {code}: {log.read_text(encoding='utf-8').strip().splitlines()[-1]}"
    )


def load_results(file: Path = RESULTS_JSON) -> dict[str, TrainingResult]:
    """Read the recorded results by architecture name."""
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: TrainingResult(**row) for name, row in rows.items()}


def save_result(training_result: TrainingResult, file: Path = RESULTS_JSON, page: Path = RESULTS_PAGE) -> None:
    """Replace the recorded result of the same architecture and rewrite the results page."""
    rows = {**load_results(file), training_result.architecture: training_result}
    ordered = {name: asdict(rows[name]) for name in architectures() if name in rows}
    file.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    page.write_text(render_page(rows), encoding="utf-8")


def render_page(rows: dict[str, TrainingResult]) -> str:
    """Render RESULTS.md."""
    lines = (_table_row(architecture, rows.get(name)) for name, architecture in architectures().items())
    return "\n".join(["# Training results of the zoo", "", _PREAMBLE, "", *_table(lines), ""])


def _table(lines: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (_COLUMNS, ("---",) * len(_COLUMNS), *lines)]


def _table_row(architecture: Architecture, training_result: TrainingResult | None) -> tuple[str, ...]:
    recipe = architecture.recipe
    leading_cells = (architecture.name, str(recipe.tier), recipe.data.name)
    if training_result is None:
        return (*leading_cells, recipe.data.metric, f"{recipe.target:g}", *("–",) * (len(_COLUMNS) - 5))
    return (
        *leading_cells,
        training_result.metric,
        f"{recipe.target:g}",
        f"{training_result.value:.3f}",
        "yes" if replace(training_result, target=recipe.target).target_reached else "no",
        f"{training_result.seconds:.0f}",
        "–" if training_result.cpu_seconds is None else f"{training_result.cpu_seconds:.0f}",
        f"{training_result.parameters:,}",
        training_result.fused,
        str(training_result.seed),
        training_result.date,
        "current" if training_result.matches_recipe(recipe) else "changed",
    )


if __name__ == "__main__":
    sys.exit(main())
