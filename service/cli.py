"""The command `headwaiter`. What an installation can do depends on its extras: each brings its commands along."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from importlib.util import find_spec


def main() -> None:
    try:
        import typer
    except ImportError:
        sys.exit("This installation has the client only; for the command line: pip install 'headwaiter[serve,cpu]'.")

    app = typer.Typer(
        name="headwaiter",
        help="Takes trained transformers to production: fused ONNX export and serving.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        rich_markup_mode="rich",
    )
    app.callback()(lambda: None)
    for group in entry_points(group="headwaiter.commands"):
        if find_spec(group.module.partition(".")[0]):  # a serving image has no `export`
            group.load()(app)
    app()
