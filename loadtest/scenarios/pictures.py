"""The plots of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from loadtest.paper import BAD
from loadtest.scenarios.files import Outcome
from loadtest.scenarios.plan import Done

_QUANTILES = {"p50": "#2fb59f", "p95": "#0b6e63", "p99": "#7a4e2d"}
_CODES = ("#c0392b", "#d9a066", "#7d6b91", "#4a6fa5", "#9aa0a6", "#7a4e2d")
_WINDOWS = 60  # points in a plot over time


def pictures(outcome: Outcome) -> dict[str, Callable[[Any], None]]:
    """By title."""
    return {title: partial(draw, outcome=outcome) for title, draw in _PICTURES.items()}


def _latency_by_rate(axes: Any, outcome: Outcome) -> None:
    done = sorted(outcome.record.done, key=lambda each: each.phase.rate)
    for name, colour in _QUANTILES.items():
        points = [(each.phase.rate, getattr(each.latency, name)) for each in done]
        rates, values = zip(*((x, y) for x, y in points if y is not None), strict=True) if _any(done) else ((), ())
        axes.plot(rates, values, "o-", color=colour, label=name, markersize=4)
    if outcome.verdict.rate is not None:
        axes.axvline(outcome.verdict.rate, color="#9aa0a6", linestyle=":", label="highest within")
    _objective(axes, outcome)
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("calls a second, as offered")
    axes.set_ylabel("ms")


def _latency_over_time(axes: Any, outcome: Outcome) -> None:
    width, windows = _windows(outcome)
    for name, colour in _QUANTILES.items():
        axes.plot(*_over_time(outcome, width, windows, f"{name}_ms"), color=colour, label=name)
    _objective(axes, outcome)
    axes.set_yscale("log")
    axes.set_xlabel(f"seconds ({width} s together: the largest)")
    axes.set_ylabel("ms")
    _phases(axes, outcome.record.done)


def _rows_in_use(axes: Any, outcome: Outcome) -> None:
    for index, model in enumerate(dict.fromkeys(each.model for each in outcome.record.seen)):
        seen = [each for each in outcome.record.seen if each.model == model]
        colour = f"C{index}"
        seconds = [each.second for each in seen]
        axes.plot(seconds, [each.rows_in_use for each in seen], color=colour, label=f"{model}: in use")
        axes.plot(seconds, [each.waiting for each in seen], color=colour, linestyle=":", label=f"{model}: waiting")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel("rows, jobs")
    _phases(axes, outcome.record.done)


def _errors_by_code(axes: Any, outcome: Outcome) -> None:
    width, windows = _windows(outcome)
    calls = [each for each in outcome.record.samples if each.is_call and each.code != "OK"]
    bottoms = [0.0] * windows
    for code, colour in zip(sorted({each.code for each in calls}), _CODES * 3, strict=False):
        counts = [0.0] * windows
        for each in calls:
            if each.code == code:
                counts[min(int(each.due / width), windows - 1)] += 1 / width
        places = [(index + 0.5) * width for index in range(windows)]
        axes.bar(places, counts, 0.9 * width, bottom=bottoms, color=colour, label=code)
        bottoms = [low + count for low, count in zip(bottoms, counts, strict=True)]
    if not calls:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="#9aa0a6")
    axes.set_xlim(0, windows * width)
    axes.set_ylim(0, max([*bottoms, 1]) * 1.1)
    axes.set_xlabel("seconds, when the calls were due")
    axes.set_ylabel("calls a second")
    _phases(axes, outcome.record.done)


_PICTURES: dict[str, Callable[..., None]] = {
    "Latency against rate": _latency_by_rate,
    "Percentiles over time": _latency_over_time,
    "Rows in use": _rows_in_use,
    "Not answered, by code": _errors_by_code,
}


def _windows(outcome: Outcome) -> tuple[int, int]:
    """Seconds that are drawn together, and how many times that."""
    length = max(len(outcome.seconds), 1)
    width = -(-length // _WINDOWS)
    return width, -(-length // width)


def _over_time(outcome: Outcome, width: int, windows: int, name: str) -> tuple[list[float], list[float]]:
    places, values = [], []
    for index in range(windows):
        part = outcome.seconds[index * width : (index + 1) * width]
        if known := [value for each in part if (value := getattr(each, name)) is not None]:
            places.append((index + 0.5) * width)
            values.append(max(known))
    return places, values


def _objective(axes: Any, outcome: Outcome) -> None:
    limit = outcome.scenario.objective.p95_ms
    axes.axhline(limit, color=BAD, linestyle="--", linewidth=1, label="objective, p95")


def _phases(axes: Any, done: Sequence[Done]) -> None:
    for index, each in enumerate(done):
        if index % 2:
            axes.axvspan(each.begin, each.end, color="#f3f3ee", zorder=-1)


def _any(done: Sequence[Done]) -> bool:
    return any(each.latency.count for each in done)
