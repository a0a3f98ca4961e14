"""`python -m loadtest.attention`: time and memory of exported token mixers by sequence length.

Measures one layer on one row. Each mixer runs in its own process per length, in interleaved rounds. Medians, peak
memory, fitted exponents and a plot are written to `loadtest/results/`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.status import Status
from rich.table import Table

from loadtest.attention.mixers import HEADS, MIXERS, SIZE, write_graph
from loadtest.attention.plot import draw
from loadtest.attention.scaling import Limits, ScalingMeasurement, SkippedLength, Slope, fit_exponent
from loadtest.benchmark_process import BenchmarkProcess, run_rounds, start_processes
from loadtest.results_file import FOLDER, machine

_LENGTHS = tuple(2**exponent for exponent in range(7, 15))
_TOKENS = 16_384  # minimum per run; passes over short sequences are repeated


class _StatusReporter:
    def __init__(self, status: Status, length: int) -> None:
        self._status, self._length = status, length

    def report_progress(self, text: str) -> None:
        self._status.update(f"{self._length} tokens: {text} …")

    def run_finished(self) -> None:
        pass


def main(arguments: Sequence[str] | None = None) -> None:
    options, console = _options(arguments), Console(highlight=False)
    load, limits = os.getloadavg()[0], Limits(options.seconds, options.megabytes)
    rows: list[ScalingMeasurement] = []
    skipped: list[SkippedLength] = []
    versions: dict[str, str] = {}
    for length in sorted(options.lengths):
        names = _within_limits(options.mixers, length, rows, skipped, limits)
        with console.status("") as status:
            measured, versions = _measure(names, length, options.rounds, _StatusReporter(status, length))
        rows += measured
        console.print(f"{length} tokens: " + ", ".join(f"{row.mixer} {row.milliseconds:.3g} ms" for row in measured))
        _save_results(options, limits, load, versions, rows, skipped)
    console.print(_table(_slopes(options.mixers, rows), rows))
    for skipped_length in skipped:
        console.print(f"{skipped_length.mixer} at {skipped_length.length}: {skipped_length.reason}")
    console.print(f"Written: {options.results}: attention.json, attention.png")


def _save_results(
    options: argparse.Namespace,
    limits: Limits,
    load: float,
    versions: dict[str, str],
    rows: Sequence[ScalingMeasurement],
    skipped: Sequence[SkippedLength],
) -> None:
    """Write the results; called after each length because long ones take minutes."""
    content = {
        "what": f"one mixer of size {SIZE} with {HEADS} heads, exported in fp32, one row",
        "machine": machine(1),
        "load_before": round(load, 2),
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "versions": versions,
        "rounds": options.rounds,
        "limits": asdict(limits),
        "settings": {name: MIXERS[name].settings for name in options.mixers},
        "slopes": [_rounded(asdict(slope)) for slope in _slopes(options.mixers, rows)],
        "skipped": [asdict(skipped_length) for skipped_length in skipped],
        "measured": [_rounded(asdict(row)) for row in rows],
    }
    options.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (options.results / "attention.json").write_text(text, encoding="utf-8")
    draw(rows, options.results / "attention.png")


def _within_limits(
    names: Iterable[str], length: int, rows: Sequence[ScalingMeasurement], skipped: list[SkippedLength], limits: Limits
) -> list[str]:
    """Return the mixers expected to stay within the limits; add the others to `skipped`."""
    within_limits = []
    for name in names:
        earlier = next((entry for entry in skipped if entry.mixer == name), None)
        reason = limits.skip_reason([row for row in rows if row.mixer == name])
        if earlier is not None:
            skipped.append(SkippedLength(name, length, f"as at length {earlier.length}: {earlier.reason}"))
        elif reason is not None:
            skipped.append(SkippedLength(name, length, reason))
        else:
            within_limits.append(name)
    return within_limits


def _measure(
    names: Sequence[str], length: int, rounds: int, status_reporter: _StatusReporter
) -> tuple[list[ScalingMeasurement], dict[str, str]]:
    calls = max(1, _TOKENS // length)
    with tempfile.TemporaryDirectory() as scratch:
        graphs = {}
        for name in names:
            status_reporter.report_progress(f"exporting {name}")
            graphs[name] = str(write_graph(name, length, Path(scratch) / name))
        with start_processes(names, "loadtest.attention.mixer_worker", 1, (), status_reporter) as processes:
            timings = run_rounds(processes, {"graphs": graphs, "calls": calls}, rounds, status_reporter)
            versions = _versions(processes)
    rows = [
        ScalingMeasurement(timing.backend, length, 1000 * timing.median / calls, timing.spread, max(timing.answers))
        for timing in timings
    ]
    return rows, versions


def _versions(processes: Sequence[BenchmarkProcess]) -> dict[str, str]:
    return processes[0].versions if processes else {}


def _slopes(names: Iterable[str], rows: Sequence[ScalingMeasurement]) -> list[Slope]:
    return [_slope(name, rows) for name in names if sum(row.mixer == name for row in rows) > 1]


def _slope(name: str, rows: Sequence[ScalingMeasurement]) -> Slope:
    measured = [row for row in rows if row.mixer == name]
    lengths = [row.length for row in measured]
    time = fit_exponent(lengths, [row.milliseconds for row in measured])
    return Slope(name, time, fit_exponent(lengths, [row.peak_mb for row in measured]), MIXERS[name].theory)


def _table(slopes: Sequence[Slope], rows: Sequence[ScalingMeasurement]) -> Table:
    table = Table("mixer", "time ~ length^", "theory", "memory ~ length^", "longest", "ms", "MB", box=SIMPLE_HEAD)
    for slope in slopes:
        last = max((row for row in rows if row.mixer == slope.mixer), key=lambda row: row.length)
        numbers = (f"{slope.time:.2f}", str(slope.theory), f"{slope.memory:.2f}")
        table.add_row(slope.mixer, *numbers, str(last.length), f"{last.milliseconds:.1f}", f"{last.peak_mb:.0f}")
    return table


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in values.items()}


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m loadtest.attention", description=__doc__.partition(": ")[2])
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=list(_LENGTHS), help="sequence lengths (128 … 16384, doubling)"
    )
    parser.add_argument("--mixers", nargs="+", choices=list(MIXERS), default=list(MIXERS), help="mixers to run (all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per mixer and length (3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="maximum seconds of a forward pass (10)")
    parser.add_argument("--megabytes", type=float, default=1500.0, help="maximum memory of a mixer (1500)")
    parser.add_argument("--results", type=Path, default=FOLDER, help="directory of the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
