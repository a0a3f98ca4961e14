"""A bar for whoever waits: its length is the plan's time."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from loadtest.part import Stage
from loadtest.report import minutes


class Bar:
    def __init__(self, console: Console, seconds: float) -> None:
        columns = (
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
        )
        self._console = console
        self._progress = Progress(*columns, console=console, transient=True, speed_estimate_period=600)
        self._task = self._progress.add_task("", total=seconds)
        self._heading, self._turn, self._rest = "", 0.0, 0.0

    def enter(self, stage: Stage, seconds: float) -> None:
        if not self._console.is_terminal:  # a bar would not be seen
            self._console.print(f"{stage.title}: about {minutes(seconds)} …")
        self._heading, self._turn, self._rest = stage.title, stage.turn_seconds, seconds

    def leave(self) -> None:
        """Preparing is counted here, with what the turns did not use up."""
        self._progress.advance(self._task, self._rest)

    def tell(self, text: str) -> None:
        self._progress.update(self._task, description=f"{self._heading}: {text}")

    def turn_is_over(self) -> None:
        self._progress.advance(self._task, self._turn)
        self._rest -= self._turn

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
