"""A package comes into being whole or not at all: made in a folder beside its place, then renamed into it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from export.errors import SourceError
from service.package import MANIFEST, Manifest

_PREFIX = ".making-"
_NO_SPACE = "No space left on device"


@contextmanager
def making(folder: Path) -> Iterator[Path]:
    """A scratch folder on the same disk as `folder`, gone afterwards whatever happens."""
    root = folder.parent.parent
    empty_again = [folder.parent, root, *([] if root.parent.exists() else [root.parent])]
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        scratch = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root))
    except OSError as error:
        raise SourceError(
            f"{root} cannot be written to ({error.strerror}): choose another place with --out."
        ) from error
    try:
        yield scratch
    except (OSError, SafetensorError) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or _NO_SPACE in str(error):
            raise SourceError(
                f"The disk under {root} is full: free some room or choose another place with --out."
            ) from error
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        _remove_empty(*empty_again)


def demand_space(scratch: Path, needed: int) -> None:
    free = shutil.disk_usage(scratch).free
    if free < needed:
        raise SourceError(
            f"The disk under {scratch.parent} has {free / 1e6:,.0f} MB left and the export needs about "
            f"{needed / 1e6:,.0f} MB: free some room or choose another place with --out."
        )


def put(content: Path, manifest: Manifest, folder: Path) -> None:
    """Into its place, in place of what was there."""
    text = manifest.model_dump_json(indent=1, exclude_none=True) + "\n"
    (content / MANIFEST).write_text(text, encoding="utf-8")
    folder.parent.mkdir(parents=True, exist_ok=True)
    old = content.with_name("old")
    if folder.exists():
        folder.rename(old)
    try:
        content.rename(folder)
    except OSError:
        if old.exists():
            old.rename(folder)
        raise


def _sweep(root: Path) -> None:
    """What exports that were killed left behind."""
    for left in root.glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
