"""Errors of the exporter's commands as one sentence on the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headwaiter.console import fail
from headwaiter_export.errors import ExportError, SourceError


@contextmanager
def exit_on_error(activity: str) -> Iterator[None]:
    """Print an export error or a missing dependency as one sentence and exit. `activity` names what was attempted."""
    try:
        yield
    except ModuleNotFoundError as error:
        fail(f"{activity} needs {error.name}, which is not installed; run pip install 'headwaiter[export,zoo,cpu]'.", 2)
    except SourceError as error:
        fail(str(error), 2)
    except ExportError as error:
        fail(str(error), 1)
