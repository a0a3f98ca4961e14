"""`python -m loadtest.attention`: time and memory of exported mixers over lengths, softmax beside the cheaper ones.

One layer, one row; each mixer runs in a process of its own at each length, and they take turns round after round.
Medians, peaks, fitted powers and a picture go to `loadtest/results/`.
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

from loadtest.attention_plot import draw
from loadtest.contest import Contestant, entered, take_turns
from loadtest.mixers import HEADS, MIXERS, SIZE, write_graph
from loadtest.results import FOLDER, machine
from loadtest.scaling import LeftOut, Limits, Scaled, Slope, power

_LENGTHS = tuple(2**power for power in range(7, 15))
_TOKENS = 16_384  # of a turn at least: short passes are repeated


class _Shown:
    """What is being done, for whoever waits."""

    def __init__(self, status: Status, length: int) -> None:
        self._status, self._length = status, length

    def tell(self, text: str) -> None:
        self._status.update(f"{self._length} tokens: {text} …")

    def turn_is_over(self) -> None:
        pass


def main(arguments: Sequence[str] | None = None) -> None:
    options, console = _options(arguments), Console(highlight=False)
    load, limits = os.getloadavg()[0], Limits(options.seconds, options.megabytes)
    rows: list[Scaled] = []
    left_out: list[LeftOut] = []
    versions: dict[str, str] = {}
    for length in sorted(options.lengths):
        names = _worth_it(options.mixers, length, rows, left_out, limits)
        with console.status("") as status:
            found, versions = _measure(names, length, options.rounds, _Shown(status, length))
        rows += found
        console.print(f"{length} tokens: " + ", ".join(f"{row.mixer} {row.milliseconds:.3g} ms" for row in found))
        _keep(options, limits, load, versions, rows, left_out)
    console.print(_table(_slopes(options.mixers, rows), rows))
    for each in left_out:
        console.print(f"{each.mixer} at {each.length}: {each.because}")
    console.print(f"Written: {options.results}: attention.json, attention.png")


def _keep(
    options: argparse.Namespace,
    limits: Limits,
    load: float,
    versions: dict[str, str],
    rows: Sequence[Scaled],
    left_out: Sequence[LeftOut],
) -> None:
    """After each length: longer ones take long."""
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
        "left_out": [asdict(each) for each in left_out],
        "measured": [_rounded(asdict(row)) for row in rows],
    }
    options.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (options.results / "attention.json").write_text(text, encoding="utf-8")
    draw(rows, options.results / "attention.png")


def _worth_it(
    names: Iterable[str], length: int, rows: Sequence[Scaled], left_out: list[LeftOut], limits: Limits
) -> list[str]:
    """Those that stay within the limits; for the others, `left_out` is told why."""
    worth_it = []
    for name in names:
        earlier = next((each for each in left_out if each.mixer == name), None)
        reason = limits.reason_against([row for row in rows if row.mixer == name])
        if earlier is not None:
            left_out.append(LeftOut(name, length, f"as at {earlier.length}: {earlier.because}"))
        elif reason is not None:
            left_out.append(LeftOut(name, length, reason))
        else:
            worth_it.append(name)
    return worth_it


def _measure(names: Sequence[str], length: int, rounds: int, shown: _Shown) -> tuple[list[Scaled], dict[str, str]]:
    calls = max(1, _TOKENS // length)
    with tempfile.TemporaryDirectory() as scratch:
        graphs = {}
        for name in names:
            shown.tell(f"{name} is exported")
            graphs[name] = str(write_graph(name, length, Path(scratch) / name))
        with entered(names, "loadtest.mixing", 1, (), shown) as contestants:
            taken = take_turns(contestants, {"graphs": graphs, "calls": calls}, rounds, shown)
            versions = _versions(contestants)
    rows = [
        Scaled(each.contestant, length, 1000 * each.median / calls, each.spread, max(each.answers)) for each in taken
    ]
    return rows, versions


def _versions(contestants: Sequence[Contestant]) -> dict[str, str]:
    return contestants[0].versions if contestants else {}


def _slopes(names: Iterable[str], rows: Sequence[Scaled]) -> list[Slope]:
    return [_slope(name, rows) for name in names if sum(row.mixer == name for row in rows) > 1]


def _slope(name: str, rows: Sequence[Scaled]) -> Slope:
    mine = [row for row in rows if row.mixer == name]
    lengths = [row.length for row in mine]
    time = power(lengths, [row.milliseconds for row in mine])
    return Slope(name, time, power(lengths, [row.peak_mb for row in mine]), MIXERS[name].theory)


def _table(slopes: Sequence[Slope], rows: Sequence[Scaled]) -> Table:
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
    parser.add_argument("--lengths", type=int, nargs="+", default=list(_LENGTHS), help="doublings (128 … 16384)")
    parser.add_argument("--mixers", nargs="+", choices=list(MIXERS), default=list(MIXERS), help="only these")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each mixer at each length (3)")
    parser.add_argument("--seconds", type=float, default=10.0, help="limit of a pass (10)")
    parser.add_argument("--megabytes", type=float, default=1500.0, help="limit of a mixer's memory (1500)")
    parser.add_argument("--results", type=Path, default=FOLDER, help="where results are kept")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
