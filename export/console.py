"""How commands talk: a line for each step, one sentence for what went wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from rich.console import Console
from rich.text import Text

console = Console(highlight=False)
_errors = Console(stderr=True, highlight=False)


@contextmanager
def step(text: str) -> Iterator[None]:
    """A line for each step when it is done; while it goes on, a spinner where someone watches."""
    started = time.monotonic()
    with console.status(f"{text} …"):
        yield
    console.print(f"[green]✓[/] {text} [dim]{time.monotonic() - started:.1f} s[/]")


def wrong(sentence: str) -> None:
    _errors.print(Text.assemble(("✗ ", "red"), sentence), soft_wrap=True)  # a sentence may have brackets of its own


def fail(sentence: str, code: int) -> NoReturn:
    wrong(sentence)
    sys.exit(code)
