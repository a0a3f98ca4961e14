"""`python -m loadtest.abuse`: hostile behaviour against a real service, beside callers that behave well.

Serves the exported built-in models on Ray, runs each scenario over real sockets, prints what was measured and expected,
and writes deploy/RESULTS.md. Exits with 1 if an expectation is not met.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwaiter.console import CommandConsole
from loadtest.abuse.good_callers import BASELINE, PAUSED, good_callers
from loadtest.abuse.report import Report, merge_rows
from loadtest.abuse.scenario import OwnRun, OwnScenario, RunOptions, SharedRun, SharedScenario, names, run_shared
from loadtest.abuse.scenarios import OWN, SHARED
from loadtest.abuse.target import Target
from loadtest.deployment_results import record, recorded_rows
from loadtest.service_process import running_service
from loadtest.soak import builtin_models

PART = "abuse"
ALL = [*names(SHARED), *names(OWN)]


def run_scenarios(selected: Sequence[str], models: dict[str, Any], options: RunOptions, report: Report) -> None:
    """Run the selected scenarios: first those that share one service, then those that start their own."""
    with tempfile.TemporaryDirectory() as scratch:
        shared = [scenario for scenario in SHARED if scenario.name in selected]
        if shared:
            report.print_line("starting the service")
            with running_service(Path(scratch), models) as service, good_callers(service.grpc) as callers:
                target = Target(service)
                report.print_line("measuring the good callers alone")
                callers.measure(BASELINE, options.scaled(20, 5))
                callers.begin(PAUSED)
                for scenario in shared:
                    report.print_line(f"{scenario.name}: {scenario.description}")
                    run_shared(scenario, SharedRun(scenario.name, target, callers, report, options))
        for own in OWN:
            if own.name in selected:
                report.print_line(f"{own.name}: {own.description}")
                folder = Path(scratch, own.name.replace(" ", "-"))
                folder.mkdir()
                own.run(OwnRun(own.name, models, folder, report, options))


def main() -> int:
    arguments = _parse_arguments()
    models = builtin_models(arguments.models)
    if not models:
        sys.stderr.write(f"{arguments.models} has no packages; `headwaiter menu export` creates them\n")
        return 2
    console, started = CommandConsole(), time.monotonic()

    def print_line(text: str) -> None:
        console.print_line(f"{time.monotonic() - started:6.0f} s  {text}")

    report = Report(print_line)
    options = RunOptions(arguments.seed, arguments.requests, arguments.first_request, arguments.short)
    run_scenarios(arguments.only or ALL, models, options, report)
    unmet = [str(finding) for finding in report.unmet]
    if not arguments.no_record:
        note = f"Seed {options.seed}. {len(unmet)} expectations were not met." if unmet else f"Seed {options.seed}."
        record(PART, merge_rows(recorded_rows(PART), report.findings, ALL), note)
    print_line("\n".join([f"{len(unmet)} of {len(report.findings)} findings are not as expected", *unmet]))
    return 1 if unmet else 0


def _parse_arguments() -> argparse.Namespace:
    everything: list[SharedScenario | OwnScenario] = [*SHARED, *OWN]
    scenarios = "\n".join(f"  {scenario.name:18} {scenario.description}" for scenario in everything)
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.abuse",
        description=f"{(__doc__ or '').partition(': ')[2]}\nscenarios:\n{scenarios}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=ALL, metavar="SCENARIO", help="run this one; may be repeated"
    )
    parser.add_argument("--requests", type=int, default=RunOptions.requests, help="requests of fuzz (%(default)s)")
    parser.add_argument("--seed", type=int, default=RunOptions.seed, help="seed of the random requests (%(default)s)")
    parser.add_argument(
        "--first-request", type=int, default=0, help="number of the first request of fuzz, to repeat a single one"
    )
    parser.add_argument("--models", type=Path, default=Path("models"), help="directory of the model packages (models)")
    parser.add_argument("--short", action="store_true", help="shorter durations, fewer and smaller attacks")
    parser.add_argument("--no-record", action="store_true", help="do not write deploy/RESULTS.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
