"""Atomic writing of packages: they are built in a staging directory and renamed into place."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from headwaiter.package.manifest import MANIFEST, Manifest
from headwaiter_export.errors import SourceError

_STAGING_PREFIX = ".staging-"
_NO_SPACE = "No space left on device"


@contextmanager
def staging_directory(folder: Path) -> Iterator[Path]:
    """Create a temporary directory on the same file system as `folder` and delete it on exit.

    Raises `SourceError` if the output directory is not writable or the disk becomes full.
    """
    root = folder.parent.parent
    remove_if_empty = [folder.parent, root, *([] if root.parent.exists() else [root.parent])]
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_stale(root)
        scratch = Path(tempfile.mkdtemp(prefix=f"{_STAGING_PREFIX}{os.getpid()}-", dir=root))
    except OSError as error:
        raise SourceError(f"{root} is not writable ({error.strerror}); choose another directory with --out.") from error
    try:
        yield scratch
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or _NO_SPACE in str(error):
            raise SourceError(
                f"The disk of {root} is full; free some space or choose another directory with --out."
            ) from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _remove_empty(*remove_if_empty)


def check_disk_space(scratch: Path, required: int) -> None:
    """Raise `SourceError` if fewer than `required` bytes are free."""
    free = shutil.disk_usage(scratch).free
    if free < required:
        raise SourceError(
            f"The disk of {scratch.parent} has {free / 1e6:,.0f} MB free, the export needs about "
            f"{required / 1e6:,.0f} MB; free some space or choose another directory with --out."
        )


def commit(content: Path, manifest: Manifest, folder: Path) -> None:
    """Write the manifest and move the package to `folder`, replacing an existing package."""
    text = manifest.model_dump_json(indent=1, exclude_none=True) + "\n"
    (content / MANIFEST).write_text(text, encoding="utf-8")
    folder.parent.mkdir(parents=True, exist_ok=True)
    previous = content.with_name("old")
    if folder.exists():
        folder.rename(previous)
    try:
        content.rename(folder)
    except OSError:
        if previous.exists():
            previous.rename(folder)
        raise


def _remove_stale(root: Path) -> None:
    """Delete staging directories of processes that no longer exist."""
    for directory in root.glob(f"{_STAGING_PREFIX}*"):
        pid = directory.name.removeprefix(_STAGING_PREFIX).split("-")[0]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(directory, ignore_errors=True)


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
