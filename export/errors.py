"""The two ways an export ends early; the command line turns each into one sentence and an exit code."""

from __future__ import annotations


class SourceError(Exception):
    """What was asked for cannot be exported: the source, the options or the place are wrong. Exit 2."""


class ExportError(Exception):
    """The export itself came out wrong: parity, fusion or device readiness is out of bounds. Exit 1."""
