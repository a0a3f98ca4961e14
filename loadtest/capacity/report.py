"""Capacity plan as console tables, JSON and HTML."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from loadtest.capacity.fleet_simulation import DayResult, FleetSettings, Traffic
from loadtest.capacity.latency_curve import MeasuredCurve, PointComparison, simulated
from loadtest.capacity.replica_simulation import ReplicaProfile
from loadtest.capacity.sizing import HOURS_PER_MONTH, FleetSize
from loadtest.html_report import BAD, format_value, paragraph, plots, render_page, table


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    measured: MeasuredCurve
    profile: ReplicaProfile
    comparisons: Sequence[PointComparison]
    agreement: str
    average: FleetSize
    peak: FleetSize
    traffic: Traffic
    settings: FleetSettings
    days: Sequence[DayResult]
    price: float | None

    @property
    def summary(self) -> str:
        size = self.average
        cost = "" if size.cost is None else f" ({size.cost:,.0f} per month)"
        return (
            f"One replica sustains {size.rate_per_replica:.3g} requests/s with p95 within "
            f"{1e3 * self.settings.objective:g} ms; {size.rate:g} requests/s require {size.replicas} replicas{cost}, "
            f"the peak of {self.peak.rate:.4g} requests/s requires {self.peak.replicas}."
        )


TableContent = tuple[str, Sequence[str], list[tuple[Any, ...]]]
"""A table: title, column heads, rows."""


def tables(plan: CapacityPlan) -> list[Table]:
    result = []
    for title, heads, rows in (_fleet_sizes(plan), _comparisons(plan), _days(plan)):
        result.append(Table(box=SIMPLE_HEAD, title=title, title_justify="left"))
        for index, head in enumerate(heads):
            result[-1].add_column(head, justify="right" if index else "left", min_width=20 if index == 0 else None)
        for row in rows:
            result[-1].add_row(*map(format_value, row))
    return result


def write_json(plan: CapacityPlan, file: Path) -> None:
    days = [{name: value for name, value in asdict(day).items() if name != "minutes"} for day in plan.days]
    content = {
        "models": plan.measured.models,
        "summary": plan.summary,
        "agreement": plan.agreement,
        "profile": asdict(plan.profile),
        "average": asdict(plan.average),
        "peak": asdict(plan.peak),
        "comparisons": [asdict(comparison) for comparison in plan.comparisons],
        "traffic": asdict(plan.traffic),
        "settings": asdict(plan.settings),
        "days": days,
    }
    file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_html(plan: CapacityPlan, file: Path) -> None:
    drawings = {"One replica: measured and simulated": partial(_draw_curve, plan=plan)}
    for day in plan.days:
        drawings[day.policy] = partial(_draw_day, day=day)
        drawings[f"{day.policy}: p95"] = partial(_draw_delay, day=day, objective=plan.settings.objective)
    body = [plots(drawings), *(table(*content) for content in (_fleet_sizes(plan), _comparisons(plan), _days(plan)))]
    body.append(paragraph("Accuracy of the simulation", plan.agreement))
    title = f"Capacity: {plan.traffic.mean:g} requests/s for {', '.join(plan.measured.models)}"
    file.write_text(render_page(title, _settings(plan), plan.summary, body, good=True), encoding="utf-8")


def _settings(plan: CapacityPlan) -> str:
    profile, settings, traffic = plan.profile, plan.settings, plan.traffic
    return (
        f"replica: {profile.slots} slots, {1e3 * profile.base_seconds:.0f} ms per request when idle, "
        f"{100 * profile.contention:.1f} % longer per concurrent request; "
        f"day: ± {100 * traffic.daily_amplitude:g} %, {traffic.bursts} bursts × {traffic.burst_factor:g} of "
        f"{traffic.burst_seconds:g} s; cold start: {settings.cold_start:g} s"
    )


def _fleet_sizes(plan: CapacityPlan) -> TableContent:
    heads = (
        "fixed fleet",
        "requests/s",
        "per replica",
        "replicas",
        "utilisation",
        "replica hours per month",
        "cost per month",
    )
    rows = [
        (name, size.rate, size.rate_per_replica, size.replicas, size.utilisation, size.replica_hours, size.cost)
        for name, size in (("for the average", plan.average), ("for the peak", plan.peak))
    ]
    return "Replicas", heads, rows


def _comparisons(plan: CapacityPlan) -> TableContent:
    heads = (
        "requests/s",
        "p50 measured ms",
        "simulated",
        "p95 measured ms",
        "simulated",
        "rejected",
        "simulated",
        "use",
    )
    rows = [
        (
            comparison.rate,
            *(
                1e3 * comparison.measured.p50,
                1e3 * comparison.simulated.p50,
                1e3 * comparison.measured.p95,
                1e3 * comparison.simulated.p95,
            ),
            *(
                comparison.measured.rejected,
                comparison.simulated.rejected,
                "fitted" if comparison.fitted else "compared",
            ),
        )
        for comparison in plan.comparisons
    ]
    return "One replica", heads, rows


def _days(plan: CapacityPlan) -> TableContent:
    heads: tuple[str, ...] = ("policy", "p50 s", "p95", "p99", "worst minute", "late or rejected %")
    heads += ("replica hours", "peak replicas", "utilisation %", "cost per month")
    rows = []
    for day in plan.days:
        hours = day.replica_hours * 24 / plan.traffic.hours
        cost = None if plan.price is None else plan.price * hours * HOURS_PER_MONTH / 24
        numbers = (day.p50, day.p95, day.p99, day.worst_minute, 100 * day.late_or_rejected)
        rows.append((day.policy, *numbers, day.replica_hours, day.peak_replicas, 100 * day.utilisation, cost))
    return "Simulated day with autoscaling", heads, rows


def _draw_curve(axes: Any, plan: CapacityPlan) -> None:
    rates = [point.rate for point in plan.comparisons]
    steps = [rates[0] + (rates[-1] - rates[0]) * index / 24 for index in range(25)]
    curve = [simulated(plan.profile, rate, plan.comparisons[0].measured.seconds) for rate in steps]
    for name, colour in (("p50", "#2fb59f"), ("p95", "#0b6e63")):
        axes.plot(steps, [1e3 * getattr(point, name) for point in curve], color=colour, label=f"{name} simulated")
        for fitted, mark in ((True, "o"), (False, "^")):
            selected = [point for point in plan.comparisons if point.fitted is fitted]
            values = [1e3 * getattr(point.measured, name) for point in selected]
            label = f"{name} measured, {'fitted' if fitted else 'compared'}"
            axes.plot([point.rate for point in selected], values, mark, color=colour, label=label, markersize=5)
    axes.set_yscale("log")
    axes.set_xlabel("requests/s")
    axes.set_ylabel("ms")


def _draw_day(axes: Any, day: DayResult) -> None:
    hours = [minute.minute / 60 for minute in day.minutes]
    axes.plot(hours, [minute.offered for minute in day.minutes], color="#9aa0a6", label="requests/s", linewidth=1)
    axes.set_xlabel("hours")
    axes.set_ylabel("requests/s")
    replica_axes = axes.twinx()
    replica_axes.step(hours, [minute.replicas for minute in day.minutes], color="#0b6e63", linewidth=1)
    replica_axes.set_ylabel("replicas", color="#0b6e63")
    replica_axes.set_ylim(bottom=0)
    replica_axes.spines[["top"]].set_visible(False)
    axes.set_ylim(bottom=0)


def _draw_delay(axes: Any, day: DayResult, objective: float) -> None:
    minutes = [minute for minute in day.minutes if minute.p95 is not None]
    axes.plot(
        [minute.minute / 60 for minute in minutes], [minute.p95 for minute in minutes], color="#0b6e63", linewidth=1
    )
    axes.axhline(objective, color=BAD, linestyle="--", linewidth=1, label="objective")
    axes.set_xlabel("hours")
    axes.set_ylabel("p95 per minute, s")
    axes.set_yscale("log")
