"""The command `headwaiter key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwaiter.console import CommandConsole


def key_command(
    name: Annotated[str | None, typer.Option(help="Name of the key (default: key-<hash prefix>).")] = None,
    append: Annotated[
        Path | None, typer.Option(help="API-key file to append the line to (default: print it only).")
    ] = None,
) -> None:
    """Create an API key. It is printed once; the file set by `auth: {keys: …}` contains only its hash.

    Examples:

      headwaiter key --name alice

      headwaiter key --name alice --append keys.txt
    """
    from headwaiter.api import keys

    console = CommandConsole()
    try:
        key = keys.make_key()
        line = keys.format_key_line(name, key)
        if append is not None:
            keys.append(append, line)
    except keys.KeysError as error:
        console.fail(str(error), 2)
    console.print_line(f"key   {key}   (printed only once; clients send `authorization: Bearer KEY`)")
    console.print_line(f"line  {line}" if append is None else f"line  {line}   (appended to {append})")
