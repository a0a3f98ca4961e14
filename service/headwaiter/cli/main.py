"""The command `headwaiter`. Its subcommands are those of the installed extras, found through entry points."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

_PRODUCT = "headwaiter"
# By entry point: the extras that its commands need, and the names of these commands.
_EXTRAS = {
    "call": "cli",
    "serve": "serve,cpu",
    "export": "export,cpu",
    "menu": "export,cpu,zoo",
    "zoo": "export,cpu,zoo",
}
_COMMANDS = {"serve": ("serve", "status", "fetch", "key"), "export": ("export", "inspect"), "menu": ("menu", "play")}


def main() -> None:
    try:
        import rich  # noqa: F401
        import typer
    except ModuleNotFoundError as error:
        sys.exit(
            f"The command line needs {error.name}, which is not installed: pip install '{_PRODUCT}[cli]' to call "
            f"models, '{_PRODUCT}[serve,cpu]' to serve them, '{_PRODUCT}[export,cpu]' to export them."
        )

    app = typer.Typer(
        name=_PRODUCT,
        help="Export trained transformers to ONNX with fused operators and serve them.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        rich_markup_mode="rich",
    )
    app.callback()(lambda: None)
    for group in entry_points(group="headwaiter.commands"):
        if find_spec(group.module.partition(".")[0]):  # serving images do not contain the export package
            _add_group(app, group)
    try:
        app()
    except ModuleNotFoundError as error:
        if _is_own(error):
            raise
        command = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
        group_name = next((name for name, names in _COMMANDS.items() if command in names), command)
        sys.exit(_missing(command, error, group_name))


def _add_group(app: typer.Typer, group: EntryPoint) -> None:
    """Add the commands of an entry point, or hidden ones that say what to install if a dependency is missing."""
    try:
        add_commands = group.load()
        add_commands(app)
    except ModuleNotFoundError as error:
        if _is_own(error):
            raise
        for command in _COMMANDS.get(group.name, (group.name,)):
            _add_placeholder(app, command, _missing(command, error, group.name))


def _add_placeholder(app: typer.Typer, command: str, message: str) -> None:
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command(command, hidden=True, context_settings=settings, add_help_option=False)
    def placeholder() -> None:
        sys.exit(message)


def _is_own(error: ModuleNotFoundError) -> bool:
    """Whether a module of this project is missing, which is a bug and no missing extra."""
    return (error.name or "").partition(".")[0].startswith(_PRODUCT)


def _missing(command: str, error: ModuleNotFoundError, group_name: str) -> str:
    extras = _EXTRAS.get(group_name, "serve,cpu")
    return f"`{_PRODUCT} {command}` needs {error.name}, which is not installed: pip install '{_PRODUCT}[{extras}]'."
