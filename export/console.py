"""How commands talk: a line for each step, one sentence for what went wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from export.errors import ExportError, SourceError

console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)


@contextmanager
def step(text: str) -> Iterator[None]:
    """A line for each step when it is done; while it goes on, a spinner where someone watches."""
    started = time.monotonic()
    with console.status(f"{text} …"):
        yield
    console.print(f"[green]✓[/] {text} [dim]{time.monotonic() - started:.1f} s[/]")


@contextmanager
def progress(name: str, steps: int) -> Iterator[Callable[[int, str], None]]:
    """A bar for work of many steps; told how many are done, and what to show of them."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"{name} starts", total=steps)
        yield lambda done, shown: bar.update(task, completed=done, description=shown)


@contextmanager
def one_sentence(doing: str) -> Iterator[None]:
    """For what needs a trained model's data and export: whatever goes wrong is one sentence, and ends the command."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{doing} needs {error.name}, which is not installed: pip install 'headwaiter[export,zoo,cpu]'.", 2)
    except SourceError as error:
        fail(str(error), 2)
    except ExportError as error:
        fail(str(error), 1)


def wrong(sentence: str) -> None:
    _errors.print(Text.assemble(("✗ ", "red"), sentence), soft_wrap=True)  # a sentence may have brackets of its own


def fail(sentence: str, code: int) -> NoReturn:
    wrong(sentence)
    sys.exit(code)
