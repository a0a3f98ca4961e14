"""`python -m loadtest.engine`: compare the engine with other engines on the same weights and machine in one run.

Backends run in interleaved rounds. Medians, ratios and targets are printed and written to `loadtest/results/`; settings
that are not measured in this run keep their earlier results.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from headwaiter.console import CommandConsole
from loadtest import results_file
from loadtest.benchmark_process import BenchmarkProcessError, run_count, run_rounds, start_processes
from loadtest.engine import console_tables
from loadtest.engine.benchmark_part import BenchmarkOptions, BenchmarkPart, Workload
from loadtest.engine.encoders import Encoders
from loadtest.engine.plot import draw
from loadtest.engine.policy import Policy
from loadtest.engine.progress_bar import ProgressBar
from loadtest.engine.targets import Target, targets
from loadtest.engine.translation import SENTENCES, Translation
from loadtest.results_file import PartResults

PARTS: tuple[BenchmarkPart, ...] = (Translation(), Encoders(), Policy())
_EXPORT_SECONDS = 60.0
_MAX_IDLE_LOAD = 0.5  # load average up to which the machine counts as idle
_OWN = "headwaiter"


@cache
def _console() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def main() -> None:
    parser = _parser()
    arguments = parser.parse_args()
    options = BenchmarkOptions(
        rounds=arguments.rounds,
        threads=arguments.threads,
        beams=tuple(arguments.beams),
        concurrency=tuple(arguments.concurrency),
        only=arguments.only,
    )
    parts = [part for part in PARTS if part.name in arguments.part and part.names(options)]
    if not parts:
        known = sorted({name for part in PARTS if part.name in arguments.part for name in part.backends})
        parser.error(f"--only {arguments.only!r} matches no backend; available: {', '.join(known)}")
    if arguments.fresh:
        for model in (model for part in parts for model in part.models):
            model.delete()
    load = os.getloadavg()[0]
    _console().print(console_tables.plan_table(_plan(parts, options)))
    if load > _MAX_IDLE_LOAD:
        _console().print(f"[yellow]The machine is not idle (load average {load:.1f}); ratios are unreliable.[/]")
    old = {} if options.only else results_file.load(arguments.results / "engine.json", PARTS)
    measured = dict(old)
    if missing := not_installed(name for part in parts for name in part.names(options)):
        _console().print(f"not installed: {', '.join(missing)}; `make bench` installs all engines", markup=False)
        sys.exit(2)
    try:
        for part, new in _run(parts, options, load):
            measured[part.name] = new.merge_older(old.get(part.name))
            if not options.only:
                _save_results(measured, arguments.results)
    except BenchmarkProcessError as error:
        _console().print(str(error), markup=False)
        sys.exit(1)
    if evaluated := _evaluate_targets(measured):
        _console().print(console_tables.target_table(evaluated))
    written = "nothing, because --only was set" if options.only else f"{arguments.results}: engine.json, engine.png"
    _console().print(f"Written: {written}")


def _save_results(measured: Mapping[str, PartResults], folder: Path) -> None:
    results_file.save(folder / "engine.json", measured, _evaluate_targets(measured))
    draw({name: part.rows for name, part in measured.items()}, folder / "engine.png")


def _evaluate_targets(measured: Mapping[str, PartResults]) -> list[Target]:
    return targets({name: part.rows for name, part in measured.items()})


def _plan(parts: Sequence[BenchmarkPart], options: BenchmarkOptions) -> list[tuple[str, str, str, float]]:
    lines = []
    for part in parts:
        if count := sum(len(model.missing()) for model in part.models):
            lines.append((part.name, "models with random weights", f"{count} exports", count * _EXPORT_SECONDS))
        lines += [
            (part.name, workload.title, workload.description, _seconds(part, workload, options))
            for workload in part.workloads(options)
        ]
    return lines


def not_installed(backends: Iterable[str]) -> list[str]:
    """Return the engines of these backends that are not installed."""
    engines = dict.fromkeys(name.split()[0] for name in backends)
    return [engine for engine in engines if engine != _OWN and find_spec(engine) is None]


def _seconds(part: BenchmarkPart, workload: Workload, options: BenchmarkOptions) -> float:
    count = run_count(part.names(options), part.slow, options.rounds)
    return count * workload.run_seconds + workload.prepare_seconds * len(part.names(options)) / len(part.backends)


def _run(
    parts: Sequence[BenchmarkPart], options: BenchmarkOptions, load: float
) -> Iterator[tuple[BenchmarkPart, PartResults]]:
    for model in (model for part in parts for model in part.models):
        model.ensure_exported(CommandConsole().step)
    total = sum(_seconds(part, workload, options) for part in parts for workload in part.workloads(options))
    with ProgressBar(_console(), total) as bar:
        for part in parts:
            yield part, _measure(part, options, load, bar)


def _measure(part: BenchmarkPart, options: BenchmarkOptions, load: float, bar: ProgressBar) -> PartResults:
    rows = []
    with start_processes(part.names(options), part.module, options.threads, part.slow, bar) as backends:
        for workload in part.workloads(options):
            bar.start_workload(workload, _seconds(part, workload, options))
            timings = run_rounds(backends, workload.task, options.rounds, bar)
            measured = part.rows(workload, timings, datetime.now(UTC).isoformat(timespec="minutes"))
            bar.finish_workload()
            _console().print(
                f"[bold]{part.name}: {workload.title}[/], {workload.description}", console_tables.table(measured)
            )
            rows += measured
        versions = {backend.name: backend.versions for backend in backends}
    return PartResults(part.description, results_file.machine(options.threads), versions, load, rows)


def _parser() -> argparse.ArgumentParser:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m loadtest.engine", description=__doc__.partition(": ")[2])
    names = [part.name for part in PARTS]
    threads = len(os.sched_getaffinity(0))
    parser.add_argument("--part", nargs="+", choices=names, default=names, help="parts to run (all)")
    parser.add_argument("--rounds", type=_positive, default=3, help="rounds per backend (3); transformers runs one")
    parser.add_argument("--threads", type=_positive, default=threads, help=f"threads per backend ({threads})")
    parser.add_argument(
        "--beams", type=_positive, nargs="+", default=[1, 4], help="translation: beam counts, 1 is greedy (1 4)"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=list(SENTENCES),
        choices=list(SENTENCES),
        help="translation: sentences in flight (1 8 64)",
    )
    parser.add_argument("--only", default="", help="run backends whose name contains this; nothing is written")
    parser.add_argument("--fresh", action="store_true", help="rebuild the models with random weights")
    parser.add_argument("--results", type=Path, default=results_file.FOLDER, help="directory of the results")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1; the minimum is 1")
    return number


if __name__ == "__main__":
    main()
