"""`python -m loadtest.startup`: time from the command to the first answer, and memory, on Ray and in a single process.

Serves a trivial model, whose weights are negligible, so that the memory is that of the service. Rounds are interleaved;
medians and targets are written to `loadtest/results/startup.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from headwaiter.client import Client, HeadwaiterError, RetryPolicy
from headwaiter_export.generated_sections import table
from loadtest.benchmark_tables import format_machine, list_targets
from loadtest.overhead.latency import TRIVIAL
from loadtest.results_file import FOLDER, machine
from loadtest.service_process import (
    SINGLE_PROCESS,
    START_SECONDS,
    STOP_SECONDS,
    ServiceProcess,
    free_ports,
    serve_command,
    write_config,
)

FILE = FOLDER / "startup.json"
WAYS: dict[str, Sequence[str]] = {"headwaiter serve": (), "headwaiter serve --single-process": SINGLE_PROCESS}
_MAX_SECONDS, _MAX_RESIDENT_MB = 3.0, 250.0  # of a single process
_POLL_SECONDS = 0.02
_SETTLE_SECONDS = 2.0  # before memory is measured
_MODEL = "trivial"


@dataclass(frozen=True, slots=True)
class Startup:
    command: str
    first_answer_seconds: float
    resident_mb: float  # sum over the processes; pages that several map count once for each
    proportional_mb: float  # sum over the processes; shared pages are divided between them
    processes: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.startup", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, after one warm-up round (3)")
    rounds, console = parser.parse_args().rounds, Console()
    TRIVIAL.ensure_exported(lambda _: nullcontext())
    load_before = os.getloadavg()[0]
    measured: dict[str, list[Startup]] = {command: [] for command in WAYS}
    for index in range(rounds + 1):  # the first is a warm-up
        for command, options in WAYS.items():
            startup = _measure(command, options)
            console.print(f"round {index} of {rounds}: {startup}", style="dim", soft_wrap=True)
            if index:
                measured[command].append(startup)
    save([_median(rows) for rows in measured.values()], rounds, load_before)
    console.print(section(), f"Written: {FILE}")


def _measure(command: str, options: Sequence[str]) -> Startup:
    with tempfile.TemporaryDirectory() as folder, _started(Path(folder), options) as (service, started):
        _wait_for_answer(service)
        seconds = time.monotonic() - started
        time.sleep(_SETTLE_SECONDS)
        pids = service.processes()
        memory = [_memory(pid) for pid in pids]
    resident, proportional = (sum(values) for values in zip(*memory, strict=True))
    return Startup(command, seconds, resident, proportional, len(pids))


@contextmanager
def _started(folder: Path, options: Sequence[str]) -> Iterator[tuple[ServiceProcess, float]]:
    """Run the command; yields the service as soon as the process exists, and the time of the start."""
    file, ports = folder / "serve.yaml", free_ports("grpc", "http", "metrics")
    write_config(file, ports, {_MODEL: {"path": str(TRIVIAL.package.resolve()), "resources": {"cpus": 1}}})
    started = time.monotonic()
    process = subprocess.Popen(
        serve_command(file, options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield ServiceProcess(file, ports, process), started
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_SECONDS)


def _wait_for_answer(service: ServiceProcess) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(HeadwaiterError), Client(service.grpc, retries=RetryPolicy(max_attempts=1), timeout=1) as client:
            client.classify(_MODEL, text="word1 word2")
            return
        assert service.process.poll() is None, f"the service exited with {service.process.returncode}"
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"no answer within {START_SECONDS} s")


def _memory(pid: int) -> tuple[float, float]:
    """Resident and proportional memory of a process in MB; zero if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0.0, 0.0
    values = dict(line.split(":") for line in lines)
    return int(values["Rss"].split()[0]) / 1024, int(values["Pss"].split()[0]) / 1024


def _median(rows: Sequence[Startup]) -> Startup:
    names = [field.name for field in fields(Startup)][1:]
    medians: dict[str, Any] = {name: statistics.median(getattr(row, name) for row in rows) for name in names}
    return Startup(rows[0].command, **medians)


def save(rows: Sequence[Startup], rounds: int, load_before: float, file: Path = FILE) -> None:
    content = {
        "machine": machine(os.cpu_count() or 1),
        "load_before": round(load_before, 2),
        "rounds": rounds,
        "rows": [{name: _rounded(value) for name, value in asdict(row).items()} for row in rows],
        "targets": _targets(next(row for row in rows if row.command.endswith(SINGLE_PROCESS[0]))),
    }
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _targets(row: Startup) -> list[dict[str, Any]]:
    values = {
        "seconds to the first answer of a single process": (row.first_answer_seconds, _MAX_SECONDS),
        "resident memory of a single process beyond the model, MB": (row.resident_mb, _MAX_RESIDENT_MB),
    }
    return [
        {
            "target": title,
            "required": f"≤ {required:g}",
            "measured": _rounded(measured),
            "result": "met" if measured <= required else "missed",
        }
        for title, (measured, required) in values.items()
    ]


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


def section(file: Path = FILE) -> str:
    """Return the section of docs/benchmarks.md."""
    results = json.loads(file.read_text(encoding="utf-8"))
    rows = (
        (
            f"`{row['command']}`",
            f"{row['first_answer_seconds']:.1f} s",
            f"{row['resident_mb']:.0f} MB",
            f"{row['proportional_mb']:.0f} MB",
            f"{row['processes']:.0f}",
        )
        for row in results["rows"]
    )
    heads = ("trivial model", "first answer", "resident memory", "proportional set size", "processes")
    origin = (
        f"On {format_machine(results['machine'])}, median of {results['rounds']} rounds, load {results['load_before']}"
    )
    return f"{origin}:\n\n{table(heads, rows)}\n\n{list_targets(results['targets'])}\n"


if __name__ == "__main__":
    main()
