"""The methods that a server offers: those of all registered tasks."""

from __future__ import annotations

from headwaiter.protocol.methods import Method, all_methods

__all__ = ["METHODS", "Method"]

METHODS = all_methods()
