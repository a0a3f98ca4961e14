"""`python -m loadtest.engine`: the engine beside its peers, on the same weights, the same machine, in one run.

Contestants take turns, round after round. Medians, ratios and what became of the targets are shown and go to
`loadtest/results/`; settings that were not measured this time stay there as they were.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from export.console import step
from loadtest import report, results
from loadtest.contest import ContestError, entered, take_turns, turns
from loadtest.encoders import Encoders
from loadtest.part import Options, Part, Stage
from loadtest.plot import draw
from loadtest.policy import Policy
from loadtest.progress import Bar
from loadtest.results import Measured
from loadtest.targets import Target, targets
from loadtest.translation import SENTENCES, Translation

PARTS: tuple[Part, ...] = (Translation(), Encoders(), Policy())
_EXPORT_SECONDS = 60.0
_QUIET = 0.5  # load average up to which the machine counts as ours
_OWN = "headwaiter"
_console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> None:
    parser = _parser()
    given = parser.parse_args()
    options = Options(
        rounds=given.rounds,
        threads=given.threads,
        beams=tuple(given.beams),
        at_once=tuple(given.at_once),
        only=given.only,
    )
    parts = [part for part in PARTS if part.name in given.part and part.names(options)]
    if not parts:
        known = sorted({name for part in PARTS if part.name in given.part for name in part.contestants})
        parser.error(f"--only {given.only!r} is in no contestant's name; there are {', '.join(known)}")
    if given.fresh:
        for model in (model for part in parts for model in part.models):
            model.forget()
    load = os.getloadavg()[0]
    _console.print(report.plan_table(_plan(parts, options)))
    if load > _QUIET:
        _console.print(f"[yellow]Others are computing here (load {load:.1f}): ratios will say little.[/]")
    old = {} if options.only else results.load(given.results / "engine.json", PARTS)
    measured = dict(old)
    if absent := not_installed(name for part in parts for name in part.names(options)):
        _console.print(f"{', '.join(absent)} not installed: `make bench` installs what competes.", markup=False)
        sys.exit(2)
    try:
        for part, new in _run(parts, options, load):
            measured[part.name] = new.after(old.get(part.name))
            if not options.only:
                _keep(measured, given.results)
    except ContestError as error:
        _console.print(str(error), markup=False)
        sys.exit(1)
    if reached := _reached(measured):
        _console.print(report.target_table(reached))
    kept = "nothing, as not all contestants took part" if options.only else f"{given.results}: engine.json, engine.png"
    _console.print(f"Written: {kept}")


def _keep(measured: Mapping[str, Measured], folder: Path) -> None:
    results.save(folder / "engine.json", measured, _reached(measured))
    draw({name: part.rows for name, part in measured.items()}, folder / "engine.png")


def _reached(measured: Mapping[str, Measured]) -> list[Target]:
    return targets({name: part.rows for name, part in measured.items()})


def _plan(parts: Sequence[Part], options: Options) -> list[tuple[str, str, str, float]]:
    lines = []
    for part in parts:
        if count := sum(len(model.missing()) for model in part.models):
            lines.append((part.name, "models with random weights", f"{count} exports", count * _EXPORT_SECONDS))
        lines += [(part.name, each.title, each.work, _seconds(part, each, options)) for each in part.stages(options)]
    return lines


def not_installed(contestants: Iterable[str]) -> list[str]:
    """Of the engines that they are named by; better known before the first of them runs than after."""
    engines = dict.fromkeys(name.split()[0] for name in contestants)
    return [each for each in engines if each != _OWN and find_spec(each) is None]


def _seconds(part: Part, stage: Stage, options: Options) -> float:
    count = turns(part.names(options), part.slow, options.rounds)
    return count * stage.turn_seconds + stage.prepare_seconds * len(part.names(options)) / len(part.contestants)


def _run(parts: Sequence[Part], options: Options, load: float) -> Iterator[tuple[Part, Measured]]:
    for model in (model for part in parts for model in part.models):
        model.make(step)
    total = sum(_seconds(part, stage, options) for part in parts for stage in part.stages(options))
    with Bar(_console, total) as bar:
        for part in parts:
            yield part, _measure(part, options, load, bar)


def _measure(part: Part, options: Options, load: float, bar: Bar) -> Measured:
    rows = []
    with entered(part.names(options), part.module, options.threads, part.slow, bar) as contestants:
        for stage in part.stages(options):
            bar.enter(stage, _seconds(part, stage, options))
            taken = take_turns(contestants, stage.task, options.rounds, bar)
            found = part.rows(stage, taken, datetime.now(UTC).isoformat(timespec="minutes"))
            bar.leave()
            _console.print(f"[bold]{part.name}: {stage.title}[/], {stage.work}", report.table(found))
            rows += found
        versions = {each.name: each.versions for each in contestants}
    return Measured(part.what, results.machine(options.threads), versions, load, rows)


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m loadtest.engine", description=__doc__.partition(": ")[2])
    names = [part.name for part in PARTS]
    threads = len(os.sched_getaffinity(0))
    parser.add_argument("--part", nargs="+", choices=names, default=names, help="only these parts")
    parser.add_argument(
        "--rounds", type=_positive, default=3, help="turns of each contestant (3); transformers has one"
    )
    parser.add_argument("--threads", type=_positive, default=threads, help=f"for each contestant ({threads})")
    parser.add_argument("--beams", type=_positive, nargs="+", default=[1, 4], help="translation: 1 is greedy (1 4)")
    parser.add_argument(
        "--at-once",
        type=int,
        nargs="+",
        default=list(SENTENCES),
        choices=list(SENTENCES),
        help="translation: sentences on their way at the same time (1 8 64)",
    )
    parser.add_argument("--only", default="", help="contestants whose name contains this; then nothing is written")
    parser.add_argument("--fresh", action="store_true", help="make the models with random weights again")
    parser.add_argument("--results", type=Path, default=results.FOLDER, help="where results are kept")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


if __name__ == "__main__":
    main()
