"""Progress bar over the estimated duration of the benchmark."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadtest.engine.benchmark_part import Workload
from loadtest.engine.console_tables import minutes


class ProgressBar:
    def __init__(self, console: Console, seconds: float) -> None:
        columns = (
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True, speed_estimate_period=600)
        self._task = self._progress.add_task("", total=seconds)
        self._heading, self._run_seconds, self._remaining_seconds = "", 0.0, 0.0

    def start_workload(self, workload: Workload, seconds: float) -> None:
        if not self._console.is_terminal:  # the bar is only drawn on terminals
            self._console.print(f"{workload.title}: about {minutes(seconds)} …")
        self._heading, self._run_seconds, self._remaining_seconds = workload.title, workload.run_seconds, seconds

    def finish_workload(self) -> None:
        """Advance by the rest of the workload's estimate, which includes preparation."""
        self._progress.advance(self._task, self._remaining_seconds)

    def report_progress(self, text: str) -> None:
        self._progress.update(self._task, description=f"{self._heading}: {text}")

    def run_finished(self) -> None:
        self._progress.advance(self._task, self._run_seconds)
        self._remaining_seconds -= self._run_seconds

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
