"""Errors that end an export. The command line prints them as one sentence and maps them to an exit code."""

from __future__ import annotations


class SourceError(Exception):
    """The source, an option or the output directory is invalid. Exit code 2."""


class ExportError(Exception):
    """The exported graphs failed a check: parity, fusion or CUDA readiness. Exit code 1."""
