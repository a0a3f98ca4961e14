"""Benchmark backends in separate processes, run in interleaved rounds so that background load affects all alike."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from loadtest.benchmark_worker import BenchmarkTask


class BenchmarkProcessError(Exception):
    """A backend process ended before it replied."""


class ProgressListener(Protocol):
    def report_progress(self, text: str) -> None:
        """Show the current activity."""

    def run_finished(self) -> None:
        """Count one finished run."""


class BenchmarkProcess:
    """A backend in its own process; `single_round` limits slow backends to the first round."""

    def __init__(self, name: str, module: str, threads: int, *, single_round: bool = False) -> None:
        self.name, self.single_round = name, single_round
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process runs
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.versions: dict[str, str] = self._read()

    def prepare(self, task: BenchmarkTask) -> str:
        return str(self._ask({"prepare": task}))

    def run_task(self, task: BenchmarkTask) -> tuple[float, Any]:
        reply = self._ask({"run_task": task})
        return reply["seconds"], reply["answer"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._errors.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _ask(self, request: dict[str, BenchmarkTask]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return json.loads(line)
        self._errors.seek(0)
        raise BenchmarkProcessError(f"{self.name} ended early:\n{self._errors.read()[-2000:]}")


@dataclass(slots=True)
class BackendTimings:
    """The seconds and answers of one backend in all rounds of one task."""

    backend: str
    settings: str
    seconds: list[float] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        return spread(self.seconds)


def spread(values: Sequence[float]) -> float:
    """Return the ratio of the largest to the smallest value."""
    return max(values) / min(values)


@contextmanager
def start_processes(
    names: Sequence[str], module: str, threads: int, slow: Sequence[str], progress: ProgressListener
) -> Iterator[list[BenchmarkProcess]]:
    with ExitStack() as stack:
        processes = []
        for name in names:
            progress.report_progress(f"starting {name}")
            processes.append(BenchmarkProcess(name, module, threads, single_round=name in slow))
            stack.callback(processes[-1].kill)
        yield processes
        for process in processes:
            process.close()


def run_count(names: Sequence[str], slow: Sequence[str], rounds: int) -> int:
    """Return the number of runs that one task takes."""
    return sum(1 if name in slow else rounds for name in names)


def run_rounds(
    processes: Sequence[BenchmarkProcess], task: BenchmarkTask, rounds: int, progress: ProgressListener
) -> list[BackendTimings]:
    """Prepare all backends, then run them round by round; every other round is reversed to balance order effects."""
    timings = {}
    for process in processes:
        progress.report_progress(f"preparing {process.name}")
        timings[process.name] = BackendTimings(process.name, process.prepare(task))
    for index in range(rounds):
        for process in processes[:: -1 if index % 2 else 1]:
            if process.single_round and index:
                continue
            progress.report_progress(f"{process.name}, round {index + 1}")
            seconds, answer = process.run_task(task)
            timings[process.name].seconds.append(seconds)
            timings[process.name].answers.append(answer)
            progress.run_finished()
    return list(timings.values())
