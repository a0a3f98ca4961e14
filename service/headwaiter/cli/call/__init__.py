"""`headwaiter call`: calls a served model from the command line."""

from __future__ import annotations

from headwaiter.cli.call.commands import add_commands

__all__ = ["add_commands"]
