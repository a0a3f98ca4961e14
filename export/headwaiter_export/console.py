"""Console output of the commands: one line per step, one sentence per error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from headwaiter_export.errors import ExportError, SourceError

console = Console(highlight=False)
_error_console = Console(stderr=True, highlight=False)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Show a spinner on a terminal while the step runs, then print the step and its duration."""
    started = time.monotonic()
    with console.status(f"{text} …"):
        yield
    console.print(f"[green]✓[/] {text} [dim]{time.monotonic() - started:.1f} s[/]")


@contextmanager
def progress(name: str, steps: int) -> Iterator[Callable[[int, str], None]]:
    """Show a progress bar. The yielded function takes the number of completed steps and the text to display."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{name} starts", total=steps)
        yield lambda completed, description: bar.update(task, completed=completed, description=description)


@contextmanager
def exit_on_error(activity: str) -> Iterator[None]:
    """Print an export error or a missing dependency as one sentence and exit. `activity` names what was attempted."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{activity} needs {error.name}, which is not installed; run pip install 'headwaiter[export,zoo,cpu]'.", 2)
    except SourceError as error:
        fail(str(error), 2)
    except ExportError as error:
        fail(str(error), 1)


def print_error(message: str) -> None:
    # Text instead of markup: a message may contain brackets.
    _error_console.print(Text.assemble(("✗ ", "red"), message), soft_wrap=True)


def print_warning(message: str) -> None:
    _error_console.print(Text.assemble(("! ", "yellow"), message), soft_wrap=True)


def fail(message: str, code: int) -> NoReturn:
    print_error(message)
    sys.exit(code)
