"""The command `headwaiter`. Its subcommands are those of the installed extras, found through entry points."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from importlib.util import find_spec


def main() -> None:
    try:
        import typer
    except ImportError:
        sys.exit("Only the client is installed; the command line needs pip install 'headwaiter[serve,cpu]'.")

    app = typer.Typer(
        name="headwaiter",
        help="Export trained transformers to ONNX with fused operators and serve them.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        rich_markup_mode="rich",
    )
    app.callback()(lambda: None)
    for group in entry_points(group="headwaiter.commands"):
        if find_spec(group.module.partition(".")[0]):  # serving images do not contain the export package
            group.load()(app)
    app()
