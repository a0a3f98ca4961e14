"""`headwaiter call`: asks a served model from the command line."""

from __future__ import annotations

from service.calls.commands import add_commands

__all__ = ["add_commands"]
