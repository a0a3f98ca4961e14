"""`python -m loadtest.tables`: regenerate the benchmark and load-test tables of README.md and docs/ from results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwaiter_export.generated_sections import README, table, write_section
from loadtest import benchmark_tables, startup
from loadtest.benchmark_tables import format_machine
from loadtest.results_file import FOLDER

_DOCS = README.parent / "docs"
_SCENARIOS = ("ramp", "steady", "burst", "soak", "cancel-storm")
_SUMMARY_MODEL = "opus-mt-zh-en"


def load(folder: Path = FOLDER / "load") -> str:
    return "\n".join(part for part in (_scenarios(folder), _capacity(folder / "capacity.json")) if part)


def _scenarios(folder: Path) -> str:
    results = [_read(folder / f"{name}.json") for name in _SCENARIOS if (folder / f"{name}.json").is_file()]
    if not results:
        return (
            "Scenarios are not measured yet. Run `make load LOAD='--out loadtest/results/load'` against one replica on "
            "an idle machine, then `.venv/bin/python -m loadtest.tables`.\n"
        )
    rows = (
        (
            result["scenario"],
            ", ".join(f"{model['name']} {model['precision']}" for model in result["models"]),
            result["verdict"]["summary"],
        )
        for result in results
    )
    verdicts = table(("scenario", "models", "verdict"), rows)
    return f"On {format_machine(results[0]['client_machine'])}:\n\n{verdicts}\n"


def _capacity(file: Path) -> str:
    if not file.is_file():
        return ""
    plan = _read(file)
    traffic = plan["traffic"]
    days = (
        f"{day['policy']}: {day['replica_hours']:.0f} replica hours, "
        f"{100 * day['late_or_rejected']:.1f} % late or rejected"
        for day in plan["days"]
    )
    return (
        f"Capacity plan from that ramp: {plan['summary']} {plan['agreement']} "
        f"A simulated day with a mean of {traffic['mean']:g} requests/s, {traffic['bursts']} bursts of "
        f"{traffic['burst_factor']:g} times the rate and a cold start of {plan['settings']['cold_start']:g} s: "
        f"{'; '.join(days)}.\n"
    )


def peers(file: Path = FOLDER / "peers.json") -> str:
    if not file.is_file():
        return (
            "Peers are not measured yet. Run `make peers` on an idle machine, then "
            "`.venv/bin/python -m loadtest.tables`.\n"
        )
    return "\n".join(_peer_table(model, result) for model, result in _read(file).items())


def summary(file: Path = FOLDER / "peers.json") -> str:
    """Return the short comparison of servers on one model for the README."""
    rows = _read(file)[_SUMMARY_MODEL]["rows"]
    return (
        table(
            ("server", "requests/s", "Headwaiter ÷ server", "p95 at 80 % load"),
            ((row["server"], f"{row['rate']:.1f}", _speedup(row), _loaded_p95(row)) for row in rows),
        )
        + "\n"
    )


def _peer_table(model: str, result: dict[str, Any]) -> str:
    rounds = len({measurement["round"] for measurement in result["measured"]})
    method = f"{rounds} round{'s' * (rounds > 1)} of at least {result['seconds']:g} s"
    heads = ("requests/s", "spread", "Headwaiter ÷ server", "p50, 1 client", "p95 at 80 % load", "memory", "startup")
    rows = (
        (
            row["server"],
            f"{row['rate']:.1f}",
            "–" if row["rate_spread"] is None or rounds == 1 else f"{row['rate_spread']:.2f}",
            _speedup(row) + _speedup_spread(row, rounds),
            f"{row['single_client_p50_ms']:.1f} ms",
            _loaded_p95(row),
            f"{row['memory_mb']:.0f} MB",
            f"{row['startup_seconds']:.1f} s",
        )
        for row in result["rows"]
    )
    lines = [
        f"**{model}**, p99 within {result['p99_limit_ms']:g} ms; {method}; {format_machine(result['machine'])}",
        "",
        table(("server", *heads), rows),
        "",
        *(f"- {row['server']}: {row['settings']}" for row in result["rows"]),
        *(
            f"- target, {target['target']}: {target['required']}, measured {target['measured']}: {target['result']}"
            for target in result["targets"]
        ),
    ]
    return "\n".join(lines) + "\n"


def _speedup(row: dict[str, Any]) -> str:
    return "–" if row["speedup"] is None else f"{row['speedup']:.2f}"


def _speedup_spread(row: dict[str, Any], rounds: int) -> str:
    return "" if row["speedup"] is None or rounds == 1 else f" (spread {row['speedup_spread']:.2f})"


def _loaded_p95(row: dict[str, Any]) -> str:
    return "–" if row["p95_at_80_percent_ms"] is None else f"{row['p95_at_80_percent_ms']:.0f} ms"


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Section:
    """A generated section: the file that holds its markers and the function that renders it."""

    file: Path
    render: Callable[[], str]


SECTIONS = {
    "summary": Section(README, summary),
    "engine": Section(_DOCS / "benchmarks.md", benchmark_tables.engine),
    "overhead": Section(_DOCS / "benchmarks.md", benchmark_tables.overhead),
    "startup": Section(_DOCS / "benchmarks.md", startup.section),
    "peers": Section(_DOCS / "benchmarks.md", peers),
    "load": Section(_DOCS / "load-testing.md", load),
}

if __name__ == "__main__":
    for name, section in SECTIONS.items():
        write_section(name, section.render(), section.file)
