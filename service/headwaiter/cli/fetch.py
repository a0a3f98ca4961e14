"""The command `headwaiter fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwaiter.console import CommandConsole


def fetch_command(
    store: Annotated[str, typer.Argument(help="Package store: a directory, or a URL with http, https, s3 or gs.")],
    packages: Annotated[list[str], typer.Argument(help="One or more packages as NAME/VERSION/PRECISION.")],
    to: Annotated[Path, typer.Option(help="Target directory.")] = Path("models"),
) -> None:
    """Fetch model packages and verify their checksums. Complete packages are not fetched again.

    Examples:

      headwaiter fetch https://store.example/models opus-mt-zh-en/1/int8 --to /models

      headwaiter fetch s3://bucket/models opus-mt-zh-en/1/int8
    """
    from headwaiter.package.fetching import FetchError, fetch

    console = CommandConsole()
    try:
        fetched = fetch(store, packages, to)
    except FetchError as error:
        console.fail(str(error), 2)
    for name in packages:
        console.print_line(f"{name} ({'fetched' if name in fetched else 'already present'})")
