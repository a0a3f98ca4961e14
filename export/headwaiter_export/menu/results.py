"""Measured metrics of the built-in models, stored in results.json and shown on their cards."""

from __future__ import annotations

import json
import re

from headwaiter_export.menu import MENU_DIR, MenuEntry

RESULTS, CARDS = MENU_DIR / "results.json", MENU_DIR / "cards"
_TABLE = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- /measured -->)", re.DOTALL)
Metrics = dict[str, float]
MetricsByPrecision = dict[str, Metrics]


def results() -> dict[str, MetricsByPrecision]:
    metrics: dict[str, MetricsByPrecision] = (
        json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    )
    return metrics


def save_metrics(name: str, metrics: MetricsByPrecision) -> None:
    """Store the metrics of a model in results.json and on its card."""
    RESULTS.write_text(json.dumps({**results(), name: metrics}, indent=2) + "\n", encoding="utf-8")
    card = CARDS / f"{name}.md"
    card.write_text(_TABLE.sub(lambda _: table(metrics), card.read_text(encoding="utf-8")), encoding="utf-8")


def table(metrics: MetricsByPrecision) -> str:
    """Render a Markdown table with a row per metric and a column per precision."""
    rows = [
        f"| {name} | " + " | ".join(_format_metric(values[name]) for values in metrics.values()) + " |"
        for name in metrics["fp32"]
    ]
    return "\n".join([f"| | {' | '.join(metrics)} |", "|---" * (len(metrics) + 1) + "|", *rows]) + "\n"


def read_card_table(card: str) -> str:
    """Return the metrics table of a card."""
    match = _TABLE.search(card)
    assert match is not None
    return match.group()


def target_summary(entry: MenuEntry) -> str:
    """The metrics that the target refers to, on one line."""
    metrics = results().get(entry.name)
    if metrics is None:
        return entry.measured or "not measured yet"
    return "; ".join(
        f"{name} {_format_metric(metrics['fp32'][name])}"
        + (f" (int8 {_format_metric(metrics['int8'][name])})" if "int8" in metrics else "")
        for name in entry.target_metrics
    )


def _format_metric(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if value <= 1 else f"{value:.2f}"
