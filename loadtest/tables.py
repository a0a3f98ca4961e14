"""`python -m loadtest.tables`: writes the README's tables of benchmarks, load tests and peers anew, from results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from export.readme import renew
from loadtest import bench_tables
from loadtest.bench_tables import machine, table
from loadtest.results import FOLDER

_SCENARIOS = ("ramp", "steady", "burst", "soak", "cancel-storm")


def tables(folder: Path = FOLDER) -> str:
    parts = (_scenarios(folder / "load"), _capacity(folder / "load" / "capacity.json"), _peers(folder / "peers.json"))
    return "\n".join(part for part in parts if part)


def _scenarios(folder: Path) -> str:
    found = [_read(folder / f"{name}.json") for name in _SCENARIOS if (folder / f"{name}.json").is_file()]
    if not found:
        return (
            "Scenarios are not measured yet: `make load LOAD='--out loadtest/results/load'` against one replica of a "
            "quiet machine, then `.venv/bin/python -m loadtest.tables`, puts their table here.\n"
        )
    rows = (
        (
            each["scenario"],
            ", ".join(f"{model['name']} {model['precision']}" for model in each["models"]),
            each["verdict"]["sentence"],
        )
        for each in found
    )
    measured = table(("scenario", "models", "verdict"), rows)
    return f"On {machine(found[0]['machine_of_the_callers'])}:\n\n{measured}\n"


def _capacity(file: Path) -> str:
    if not file.is_file():
        return ""
    found = _read(file)
    days = (
        f"{each['policy']}: {each['replica_hours']:.0f} replica hours, {100 * each['beyond']:.1f} % late or refused"
        for each in found["days"]
    )
    day = found["traffic"]
    bursts = f"{day['bursts']} bursts of {day['burst_times']:g} times as many"
    return (
        f"Capacity, from that ramp: {found['sentence']} {found['agreement']} "
        f"A day of {day['mean']:g} calls a second with {bursts}, on replicas that start within "
        f"{found['settings']['cold_start']:g} s: {'; '.join(days)}.\n"
    )


def _peers(file: Path) -> str:
    if not file.is_file():
        return (
            "Peers are not measured yet: `make peers` on a quiet machine, then `.venv/bin/python -m loadtest.tables`, "
            "puts their tables here.\n"
        )
    return "\n".join(_peer_table(name, found) for name, found in _read(file).items())


def _peer_table(name: str, found: dict[str, Any]) -> str:
    heads = ("calls/s", "spread", "Headwaiter ÷", "one caller, p50", "p95 at 80 %", "memory", "start")
    rounds = len({each["round"] for each in found["measured"]})
    how = f"{rounds} round{'s' * (rounds > 1)} of at least {found['seconds']:g} s"
    lines = [f"**{name}**, p99 within {found['p99_limit_ms']:g} ms; {how}; {machine(found['machine'])}", ""]
    lines += [f"| {' | '.join(('served by', *heads))} |", "|---" * (len(heads) + 1) + "|"]
    for row in found["rows"]:
        times = "–" if row["times_as_much"] is None else f"{row['times_as_much']:.2f}"
        if row["times_as_much"] is not None and rounds > 1:
            times += f" (spread {row['times_spread']:.2f})"
        usual = "–" if row["usual_p95_ms"] is None else f"{row['usual_p95_ms']:.0f} ms"
        spread = "–" if row["rate_spread"] is None or rounds == 1 else f"{row['rate_spread']:.2f}"
        cells = (f"{row['rate']:.1f}", spread, times, f"{row['alone_p50_ms']:.1f} ms", usual)
        last = (f"{row['memory_mb']:.0f} MB", f"{row['started_seconds']:.1f} s")
        lines.append(f"| {' | '.join((row['entrant'], *cells, *last))} |")
    lines += ["", *(f"- {row['entrant']}: {row['settings']}" for row in found["rows"])]
    for each in found["targets"]:
        lines.append(f"- target, {each['target']}: {each['wanted']}, measured {each['measured']}: {each['result']}")
    return "\n".join(lines) + "\n"


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


PARTS = {"engine": bench_tables.engine, "overhead": bench_tables.overhead, "load": tables}

if __name__ == "__main__":
    for name, text in PARTS.items():
        renew(name, text())
