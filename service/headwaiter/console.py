"""Console output of all commands: one line per step, one sentence per warning or error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text


class CommandConsole:
    """Prints results to stdout, warnings and errors to stderr: symbols and spinners in a terminal, else plain text."""

    def __init__(self) -> None:
        # Ray replaces sys.stdout while it starts; keep the original streams.
        self.out = Console(file=sys.stdout, highlight=False)
        self._errors = Console(file=sys.stderr, highlight=False)

    def print(self, content: Any, **options: Any) -> None:
        """Print a table or text with rich's markup."""
        self.out.print(content, **options)

    def print_line(self, text: str = "") -> None:
        """Print text as it is, unwrapped."""
        self.out.print(Text(text), soft_wrap=True)

    def print_done(self, text: str, seconds: float) -> None:
        self.out.print(Text.assemble(("✓ ", "green"), text, (f" {seconds:.1f} s", "dim")), soft_wrap=True)

    def warn(self, message: str) -> None:
        self._errors.print(Text.assemble(("! ", "yellow"), message), soft_wrap=True)

    def print_error(self, message: str) -> None:
        # Text instead of markup: a message may contain brackets.
        self._errors.print(Text.assemble(("✗ ", "red"), message), soft_wrap=True)

    def fail(self, message: str, code: int) -> NoReturn:
        """Print the error and exit with `code`."""
        self.print_error(message)
        sys.exit(code)

    @contextmanager
    def spinner(self, text: str) -> Iterator[None]:
        with self.out.status(f"{text} …"):
            yield

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show a spinner on a terminal while the step runs, then print the step and its duration."""
        started = time.monotonic()
        with self.spinner(text):
            yield
        self.print_done(text, time.monotonic() - started)

    @contextmanager
    def progress(self, name: str, steps: int) -> Iterator[Callable[[int, str], None]]:
        """Show a progress bar. The yielded function takes the number of completed steps and the text to display."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=self.out) as bar:
            task = bar.add_task(f"{name} starts", total=steps)
            yield lambda completed, description: bar.update(task, completed=completed, description=description)


def fail(message: str, code: int) -> NoReturn:
    """Print the error to stderr and exit with `code`."""
    CommandConsole().fail(message, code)
