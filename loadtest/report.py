"""What was planned and measured, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from loadtest.rows import EncoderRow, PolicyRow, Row, TranslationRow, ratio
from loadtest.targets import Target


def table(rows: Sequence[Row]) -> Table:
    """Rows of one setting."""
    if translation := [row for row in rows if isinstance(row, TranslationRow)]:
        return _translation(translation)
    if encoders := [row for row in rows if isinstance(row, EncoderRow)]:
        return _encoders(encoders)
    return _policy([row for row in rows if isinstance(row, PolicyRow)])


def target_table(targets: Sequence[Target]) -> Table:
    drawn = _drawn(["target"], ["wanted", "measured"], "result")
    for each in targets:
        result = Text(each.result, "green" if each.met else "red")
        drawn.add_row(each.title, each.wanted, f"{each.measured:.2f}", result)
    return drawn


def plan_table(lines: Sequence[tuple[str, str, str, float]]) -> Table:
    """Part, stage, work of a turn, seconds."""
    drawn = _drawn(["part", "stage", "a turn"], ["about"])
    for part, stage, work, seconds in lines:
        drawn.add_row(part, stage, work, minutes(seconds))
    drawn.add_section()
    drawn.add_row("in all", "", "", minutes(sum(line[3] for line in lines)))
    return drawn


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} min"


def _translation(rows: Sequence[TranslationRow]) -> Table:
    numbers = ["sentences/s", "÷ ct2", "÷ hf", "spread", "chrF own fp32", "chrF ct2 fp32"]
    drawn = _drawn(["contestant"], numbers, "settings")
    for row in rows:
        drawn.add_row(
            row.contestant,
            f"{row.rate:.1f}",
            _shown(ratio(row, rows, f"ctranslate2 {row.precision}")),
            _shown(ratio(row, rows, "transformers fp32")),
            f"{row.spread:.2f}",
            _shown(row.chrf_own_fp32, 1),
            _shown(row.chrf_ctranslate2, 1),
            row.settings,
        )
    return drawn


def _encoders(rows: Sequence[EncoderRow]) -> Table:
    drawn = _drawn(["contestant"], ["items/s", "÷ bare session", "spread", "difference"], "settings")
    for row in rows:
        beside = _shown(ratio(row, rows, f"onnxruntime {row.precision}"))
        apart = "–" if row.difference is None else f"{row.difference:.1e}"
        drawn.add_row(row.contestant, f"{row.rate:.2f}", beside, f"{row.spread:.2f}", apart, row.settings)
    return drawn


def _policy(rows: Sequence[PolicyRow]) -> Table:
    first = rows[0].milliseconds
    drawn = _drawn(["contestant"], ["position", "ms a step", "÷ first", "spread", "steps"], "settings")
    for row in rows:
        beside = f"{row.milliseconds / first:.2f}"
        numbers = (str(row.position), f"{row.milliseconds:.3f}", beside, f"{row.spread:.2f}", str(row.steps))
        drawn.add_row(row.contestant, *numbers, row.settings)
    return drawn


def _drawn(words: Sequence[str], numbers: Sequence[str], last: str | None = None) -> Table:
    drawn = Table(box=SIMPLE_HEAD)
    for heading in words:
        drawn.add_column(heading, no_wrap=True)
    for heading in numbers:
        drawn.add_column(heading, justify="right", no_wrap=heading.count(" ") < 2)
    if last is not None:
        drawn.add_column(last)
    return drawn


def _shown(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
