"""A plan for whoever pays: replicas, cost, and what a day would be like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.capacity.curve import Compared, Measured, simulated
from loadtest.capacity.day import Day, Settings, Traffic
from loadtest.capacity.need import HOURS_OF_A_MONTH, Need
from loadtest.capacity.replica import Pace
from loadtest.paper import BAD, page, paragraph, plots, shown, table


@dataclass(frozen=True, slots=True)
class Findings:
    measured: Measured
    pace: Pace
    compared: Sequence[Compared]
    agreement: str
    average: Need
    peak: Need
    traffic: Traffic
    settings: Settings
    days: Sequence[Day]
    price: float | None

    @property
    def sentence(self) -> str:
        need = self.average
        cost = "" if need.cost is None else f", {need.cost:,.0f} a month"
        return (
            f"One replica carries {need.one_carries:.3g} calls a second with p95 within "
            f"{1e3 * self.settings.objective:g} ms; {need.rate:g} a second need {need.replicas} replicas{cost}, "
            f"the peak of {self.peak.rate:.4g} needs {self.peak.replicas}."
        )


Content = tuple[str, Sequence[str], list[tuple[Any, ...]]]
"""Of a table: title, heads, rows."""


def tables(findings: Findings) -> list[Table]:
    drawn = []
    for title, heads, rows in (_needs(findings), _compared(findings), _days(findings)):
        drawn.append(Table(box=SIMPLE_HEAD, title=title, title_justify="left"))
        for index, head in enumerate(heads):
            drawn[-1].add_column(head, justify="right" if index else "left", min_width=20 if index == 0 else None)
        for row in rows:
            drawn[-1].add_row(*map(shown, row))
    return drawn


def write_json(findings: Findings, file: Path) -> None:
    days = [{name: value for name, value in asdict(day).items() if name != "minutes"} for day in findings.days]
    content = {
        "models": findings.measured.models,
        "sentence": findings.sentence,
        "agreement": findings.agreement,
        "pace": asdict(findings.pace),
        "average": asdict(findings.average),
        "peak": asdict(findings.peak),
        "compared": [asdict(each) for each in findings.compared],
        "traffic": asdict(findings.traffic),
        "settings": asdict(findings.settings),
        "days": days,
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_html(findings: Findings, file: Path) -> None:
    drawings = {"One replica: measured and simulated": partial(_draw_curve, findings=findings)}
    for day in findings.days:
        drawings[day.policy] = partial(_draw_day, day=day)
        drawings[f"{day.policy}: p95"] = partial(_draw_delay, day=day, objective=findings.settings.objective)
    body = [plots(drawings), *(table(*each) for each in (_needs(findings), _compared(findings), _days(findings)))]
    body.append(paragraph("How well the simulation agrees", findings.agreement))
    title = f"Capacity: {findings.traffic.mean:g} calls a second of {', '.join(findings.measured.models)}"
    file.write_text(page(title, _settings(findings), findings.sentence, body, good=True), encoding="utf-8")


def _settings(findings: Findings) -> str:
    pace, settings, traffic = findings.pace, findings.settings, findings.traffic
    return (
        f"a replica: {pace.rows} rows, {1e3 * pace.alone:.0f} ms for a call alone, {100 * pace.crowding:.1f} % longer "
        f"for each other; a day: ± {100 * traffic.swing:g} %, {traffic.bursts} bursts × {traffic.burst_times:g} of "
        f"{traffic.burst_seconds:g} s; {settings.cold_start:g} s until a new replica answers"
    )


def _needs(findings: Findings) -> Content:
    heads = ("fixed number of replicas", "calls/s", "one carries", "replicas", "used", "replica hours a month", "cost")
    rows = [
        (name, need.rate, need.one_carries, need.replicas, need.used, need.replica_hours, need.cost)
        for name, need in (("for the average", findings.average), ("for the peak", findings.peak))
    ]
    return "Replicas", heads, rows


def _compared(findings: Findings) -> Content:
    heads = ("calls/s", "p50 measured ms", "simulated", "p95 measured ms", "simulated", "refused", "simulated", "use")
    rows = [
        (
            each.rate,
            *(1e3 * each.measured.p50, 1e3 * each.simulated.p50, 1e3 * each.measured.p95, 1e3 * each.simulated.p95),
            *(each.measured.refused, each.simulated.refused, "fitted" if each.fitted else "compared"),
        )
        for each in findings.compared
    ]
    return "One replica", heads, rows


def _days(findings: Findings) -> Content:
    heads: tuple[str, ...] = ("policy", "p50 s", "p95", "p99", "worst minute", "late or refused %")
    heads += ("replica hours", "most", "rows used %", "cost a month")
    rows = []
    for day in findings.days:
        hours = day.replica_hours * 24 / findings.traffic.hours
        cost = None if findings.price is None else findings.price * hours * HOURS_OF_A_MONTH / 24
        numbers = (day.p50, day.p95, day.p99, day.worst_minute, 100 * day.beyond)
        rows.append((day.policy, *numbers, day.replica_hours, day.most_replicas, 100 * day.used, cost))
    return "A day that scales itself", heads, rows


def _draw_curve(axes: Any, findings: Findings) -> None:
    rates = [each.rate for each in findings.compared]
    steps = [rates[0] + (rates[-1] - rates[0]) * index / 24 for index in range(25)]
    lines = [simulated(findings.pace, rate, findings.compared[0].measured.seconds) for rate in steps]
    for name, colour in (("p50", "#2fb59f"), ("p95", "#0b6e63")):
        axes.plot(steps, [1e3 * getattr(each, name) for each in lines], color=colour, label=f"{name} simulated")
        for fitted, mark in ((True, "o"), (False, "^")):
            chosen = [each for each in findings.compared if each.fitted is fitted]
            values = [1e3 * getattr(each.measured, name) for each in chosen]
            label = f"{name} measured, {'fitted' if fitted else 'compared'}"
            axes.plot([each.rate for each in chosen], values, mark, color=colour, label=label, markersize=5)
    axes.set_yscale("log")
    axes.set_xlabel("calls a second")
    axes.set_ylabel("ms")


def _draw_day(axes: Any, day: Day) -> None:
    hours = [each.minute / 60 for each in day.minutes]
    axes.plot(hours, [each.offered for each in day.minutes], color="#9aa0a6", label="calls a second", linewidth=1)
    axes.set_xlabel("hours")
    axes.set_ylabel("calls a second")
    other = axes.twinx()
    other.step(hours, [each.replicas for each in day.minutes], color="#0b6e63", linewidth=1)
    other.set_ylabel("replicas", color="#0b6e63")
    other.set_ylim(bottom=0)
    other.spines[["top"]].set_visible(False)
    axes.set_ylim(bottom=0)


def _draw_delay(axes: Any, day: Day, objective: float) -> None:
    known = [each for each in day.minutes if each.p95 is not None]
    axes.plot([each.minute / 60 for each in known], [each.p95 for each in known], color="#0b6e63", linewidth=1)
    axes.axhline(objective, color=BAD, linestyle="--", linewidth=1, label="objective")
    axes.set_xlabel("hours")
    axes.set_ylabel("p95 of each minute, s")
    axes.set_yscale("log")
