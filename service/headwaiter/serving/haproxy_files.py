"""The files of the HAProxy that Serve runs on a local Ray: one directory per user, one subdirectory per Ray node.

Serve uses one directory for all users by default, and the first user who serves owns it. TMPDIR is not used because the
path of a socket has at most 107 bytes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from headwaiter.serving.ray_compat import HAPROXY_BINARY, HAPROXY_FILES

_STOP_SECONDS = 5
_POLL_SECONDS = 0.2


class ForeignDirectoryError(Exception):
    """The directory belongs to another user."""


def directory() -> Path:
    return Path(f"/tmp/haproxy-serve-{os.getuid()}")


def environment() -> dict[str, str]:
    """Create the directory and return the variables that make Serve use it."""
    folder = directory()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ForeignDirectoryError(f"{folder} is owned by another user; remove it.")
    return {variable: str(folder / name) for variable, name in HAPROXY_FILES.items()}


def program(script: str | None) -> dict[str, str]:
    """Write the program to run instead of HAProxy and return the variable that makes Serve run it."""
    if script is None:
        return {}
    file = directory() / f"haproxy-{hashlib.sha256(script.encode()).hexdigest()[:12]}"  # of this environment
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(script, encoding="utf-8")
    unfinished.chmod(0o700)
    unfinished.replace(file)  # at once: another service of this user may run it
    return {HAPROXY_BINARY: str(file)}


def remove(node: str) -> None:
    """Stop the HAProxy of a Ray node, which survives a killed Ray, and delete its files."""
    folder = directory() / node
    deadline = time.monotonic() + _STOP_SECONDS
    while (pids := _find_processes(f"{folder}/haproxy.cfg")) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)


def _find_processes(argument: str) -> list[int]:
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process may exit meanwhile
            if argument.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids
