"""Plots of a scenario report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from loadtest.html_report import BAD
from loadtest.scenarios.definitions import PhaseResult
from loadtest.scenarios.result_files import ScenarioResult

_QUANTILES = {"p50": "#2fb59f", "p95": "#0b6e63", "p99": "#7a4e2d"}
_CODES = ("#c0392b", "#d9a066", "#7d6b91", "#4a6fa5", "#9aa0a6", "#7a4e2d")
_WINDOWS = 60  # points in a plot over time


def scenario_plots(scenario_result: ScenarioResult) -> dict[str, Callable[[Any], None]]:
    """Return drawing functions by title."""
    return {title: partial(draw, scenario_result=scenario_result) for title, draw in _PLOTS.items()}


def _latency_by_rate(axes: Any, scenario_result: ScenarioResult) -> None:
    phase_results = sorted(scenario_result.record.phase_results, key=lambda result: result.phase.rate)
    for name, colour in _QUANTILES.items():
        points = [(result.phase.rate, getattr(result.latency, name)) for result in phase_results]
        rates, values = (
            zip(*((x, y) for x, y in points if y is not None), strict=True)
            if _has_latencies(phase_results)
            else ((), ())
        )
        axes.plot(rates, values, "o-", color=colour, label=name, markersize=4)
    if scenario_result.verdict.rate is not None:
        axes.axvline(
            scenario_result.verdict.rate, color="#9aa0a6", linestyle=":", label="highest rate within the objective"
        )
    _objective(axes, scenario_result)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("offered requests/s")
    axes.set_ylabel("ms")


def _latency_over_time(axes: Any, scenario_result: ScenarioResult) -> None:
    width, windows = _windows(scenario_result)
    for name, colour in _QUANTILES.items():
        axes.plot(*_over_time(scenario_result, width, windows, f"{name}_ms"), color=colour, label=name)
    _objective(axes, scenario_result)
    axes.set_yscale("log")
    axes.set_xlabel(f"seconds (maximum over {width} s)")
    axes.set_ylabel("ms")
    _phases(axes, scenario_result.record.phase_results)


def _slots_in_use(axes: Any, scenario_result: ScenarioResult) -> None:
    for index, model in enumerate(dict.fromkeys(sample.model for sample in scenario_result.record.gauge_samples)):
        gauge_samples = [sample for sample in scenario_result.record.gauge_samples if sample.model == model]
        colour = f"C{index}"
        seconds = [sample.second for sample in gauge_samples]
        axes.plot(seconds, [sample.slots_in_use for sample in gauge_samples], color=colour, label=f"{model}: in use")
        axes.plot(
            seconds, [sample.queued for sample in gauge_samples], color=colour, linestyle=":", label=f"{model}: queued"
        )
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("slots, queued jobs")
    _phases(axes, scenario_result.record.phase_results)


def _errors_by_code(axes: Any, scenario_result: ScenarioResult) -> None:
    width, windows = _windows(scenario_result)
    calls = [sample for sample in scenario_result.record.samples if sample.is_call and sample.code != "OK"]
    bottoms = [0.0] * windows
    for code, colour in zip(sorted({sample.code for sample in calls}), _CODES * 3, strict=False):
        counts = [0.0] * windows
        for sample in calls:
            if sample.code == code:
                counts[min(int(sample.due / width), windows - 1)] += 1 / width
        positions = [(index + 0.5) * width for index in range(windows)]
        axes.bar(positions, counts, 0.9 * width, bottom=bottoms, color=colour, label=code)
        bottoms = [low + count for low, count in zip(bottoms, counts, strict=True)]
    if not calls:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="#9aa0a6")
    axes.set_xlim(0, windows * width)
    axes.set_ylim(0, max([*bottoms, 1]) * 1.1)
    axes.set_xlabel("scheduled arrival, seconds")
    axes.set_ylabel("requests/s")
    _phases(axes, scenario_result.record.phase_results)


_PLOTS: dict[str, Callable[..., None]] = {
    "Latency against rate": _latency_by_rate,
    "Percentiles over time": _latency_over_time,
    "Slots in use": _slots_in_use,
    "Requests not answered, by code": _errors_by_code,
}


def _windows(scenario_result: ScenarioResult) -> tuple[int, int]:
    """Return the width of a window in seconds and the number of windows."""
    length = max(len(scenario_result.seconds), 1)
    width = -(-length // _WINDOWS)
    return width, -(-length // width)


def _over_time(scenario_result: ScenarioResult, width: int, windows: int, name: str) -> tuple[list[float], list[float]]:
    positions, values = [], []
    for index in range(windows):
        window = scenario_result.seconds[index * width : (index + 1) * width]
        if values_in_window := [value for second in window if (value := getattr(second, name)) is not None]:
            positions.append((index + 0.5) * width)
            values.append(max(values_in_window))
    return positions, values


def _objective(axes: Any, scenario_result: ScenarioResult) -> None:
    limit = scenario_result.scenario.objective.p95_ms
    axes.axhline(limit, color=BAD, linestyle="--", linewidth=1, label="objective, p95")


def _phases(axes: Any, phase_results: Sequence[PhaseResult]) -> None:
    for index, result in enumerate(phase_results):
        if index % 2:
            axes.axvspan(result.begin, result.end, color="#f3f3ee", zorder=-1)


def _has_latencies(phase_results: Sequence[PhaseResult]) -> bool:
    return any(result.latency.count for result in phase_results)
