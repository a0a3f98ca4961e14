"""Marks packages that are loaded on this machine, so that an export can warn before it replaces one.

The mark is a shared lock on the manifest, which the kernel releases when the process ends.
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import BinaryIO

from headwaiter.package.manifest import MANIFEST, Package


def mark_in_use(package: Package) -> BinaryIO | None:
    """Mark a package until the returned file is closed. Returns None on a file system without locks."""
    manifest = package.file(MANIFEST).open("rb")
    try:
        fcntl.flock(manifest, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        manifest.close()
        return None
    return manifest


def is_in_use(folder: Path) -> bool:
    """Return whether a process on this machine has loaded the package in `folder`."""
    try:
        with (folder / MANIFEST).open("rb") as manifest:
            fcntl.flock(manifest, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no package, or the file system has no locks
        return False
    return False
