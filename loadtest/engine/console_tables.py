"""Console tables of the plan, the measurements and the targets."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from loadtest.engine.measurements import (
    EncoderMeasurement,
    Measurement,
    PolicyMeasurement,
    TranslationMeasurement,
    ratio,
)
from loadtest.engine.targets import Target


def table(rows: Sequence[Measurement]) -> Table:
    """Return a table of measurements of one setting."""
    if translation := [row for row in rows if isinstance(row, TranslationMeasurement)]:
        return _translation(translation)
    if encoders := [row for row in rows if isinstance(row, EncoderMeasurement)]:
        return _encoders(encoders)
    return _policy([row for row in rows if isinstance(row, PolicyMeasurement)])


def target_table(targets: Sequence[Target]) -> Table:
    result_table = _make_table(["target"], ["required", "measured"], "result")
    for target in targets:
        result = Text(target.result, "green" if target.met else "red")
        result_table.add_row(target.title, target.required, f"{target.measured:.2f}", result)
    return result_table


def plan_table(lines: Sequence[tuple[str, str, str, float]]) -> Table:
    """Return a table of (part, workload, description of a run, seconds)."""
    result_table = _make_table(["part", "workload", "run"], ["estimate"])
    for part, workload, description, seconds in lines:
        result_table.add_row(part, workload, description, minutes(seconds))
    result_table.add_section()
    result_table.add_row("total", "", "", minutes(sum(line[3] for line in lines)))
    return result_table


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _translation(rows: Sequence[TranslationMeasurement]) -> Table:
    numbers = ["sentences/s", "÷ ct2", "÷ hf", "spread", "chrF own fp32", "chrF ct2 fp32"]
    result_table = _make_table(["backend"], numbers, "settings")
    for row in rows:
        result_table.add_row(
            row.backend,
            f"{row.rate:.1f}",
            _format(ratio(row, rows, f"ctranslate2 {row.precision}")),
            _format(ratio(row, rows, "transformers fp32")),
            f"{row.spread:.2f}",
            _format(row.chrf_vs_own_fp32, 1),
            _format(row.chrf_vs_ctranslate2_fp32, 1),
            row.settings,
        )
    return result_table


def _encoders(rows: Sequence[EncoderMeasurement]) -> Table:
    result_table = _make_table(["backend"], ["items/s", "÷ bare session", "spread", "difference"], "settings")
    for row in rows:
        relative = _format(ratio(row, rows, f"onnxruntime {row.precision}"))
        difference = "–" if row.difference is None else f"{row.difference:.1e}"
        result_table.add_row(row.backend, f"{row.rate:.2f}", relative, f"{row.spread:.2f}", difference, row.settings)
    return result_table


def _policy(rows: Sequence[PolicyMeasurement]) -> Table:
    first = rows[0].milliseconds
    result_table = _make_table(["backend"], ["position", "ms per step", "÷ first", "spread", "steps"], "settings")
    for row in rows:
        relative = f"{row.milliseconds / first:.2f}"
        numbers = (str(row.position), f"{row.milliseconds:.3f}", relative, f"{row.spread:.2f}", str(row.steps))
        result_table.add_row(row.backend, *numbers, row.settings)
    return result_table


def _make_table(text_columns: Sequence[str], numbers: Sequence[str], last: str | None = None) -> Table:
    result_table = Table(box=SIMPLE_HEAD)
    for heading in text_columns:
        result_table.add_column(heading, no_wrap=True)
    for heading in numbers:
        result_table.add_column(heading, justify="right", no_wrap=heading.count(" ") < 2)
    if last is not None:
        result_table.add_column(last)
    return result_table


def _format(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
