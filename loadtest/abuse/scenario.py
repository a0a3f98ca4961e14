"""What a scenario is, and the run that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.abuse.good_callers import BASELINE, PAUSED, GoodCallers
from loadtest.abuse.report import Report
from loadtest.abuse.statistics import milliseconds
from loadtest.abuse.target import Target


@dataclass(frozen=True)
class RunOptions:
    seed: int = 1
    requests: int = 200_000  # of the fuzz scenario
    first_request: int = 0
    is_short: bool = False

    def scaled(self, full: float, short: float) -> float:
        """A number or duration of the full run, or of the short one."""
        return short if self.is_short else full


@dataclass
class SharedRun:
    """A scenario against the service that several scenarios share, with good callers that run meanwhile."""

    name: str
    target: Target
    callers: GoodCallers
    report: Report
    options: RunOptions

    def add(self, what: str, measured: str, expected: str = "", *, is_met: bool = True) -> None:
        self.report.add(self.name, what, measured, expected, is_met=is_met)


@dataclass
class OwnRun:
    """A scenario that starts services of its own from the configuration of the models."""

    name: str
    models: dict[str, Any]
    folder: Path
    report: Report
    options: RunOptions

    def add(self, what: str, measured: str, expected: str = "", *, is_met: bool = True) -> None:
        self.report.add(self.name, what, measured, expected, is_met=is_met)


@dataclass(frozen=True, slots=True)
class SharedScenario:
    name: str
    description: str
    run: Callable[[SharedRun], None]


@dataclass(frozen=True, slots=True)
class OwnScenario:
    name: str
    description: str
    run: Callable[[OwnRun], None]


def run_shared(scenario: SharedScenario, run: SharedRun) -> None:
    """Run the scenario beside the good callers, and check them, the replicas and the open work afterwards."""
    replicas = run.target.replicas()
    run.callers.begin(scenario.name)
    scenario.run(run)
    run.callers.begin(PAUSED)
    remaining = run.target.wait_until_idle()
    add_callers(run)
    run.add(
        "slots, queued jobs, episodes and jobs left at the end",
        ", ".join(f"{value:g} {name}" for name, value in remaining.items()) or "0",
        "0",
        is_met=not remaining,
    )
    restarted = [name for name, pids in run.target.replicas().items() if pids != replicas[name]]
    run.report.add_count(scenario.name, "replicas restarted", restarted)


def add_callers(run: SharedRun) -> None:
    """Record what the good callers saw during the scenario, compared with the baseline."""
    logs = run.callers.read()
    log = logs.get(run.name)
    if log is None:
        run.add("good callers", "no request", "at least one", is_met=False)
        return
    run.report.add_count(run.name, "good callers: failed requests", log.failed)
    figures = f"{milliseconds(log.p95)}, {run.callers.ratio(run.name):.1f} × the {milliseconds(logs[BASELINE].p95)}"
    run.add(f"good callers: p95 of {len(log.seconds):,} requests", f"{figures} without abuse")


def names(scenarios: Sequence[SharedScenario | OwnScenario]) -> list[str]:
    return [scenario.name for scenario in scenarios]
