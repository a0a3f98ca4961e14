"""The number of CPUs that this process may use, which in a container is often less than the machine has."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def available_cpus(control_groups: Path = _CONTROL_GROUPS, membership: Path = _MEMBERSHIP) -> int:
    """CPUs of the affinity mask, limited by the lowest CPU quota (rounded up) of the control groups of this process.

    `control_groups` is where the kernel mounts them, version 1 or 2; `membership` lists those of the process.
    """
    return max(1, min([len(os.sched_getaffinity(0)), *map(math.ceil, _quotas(control_groups, membership))]))


def _quotas(control_groups: Path, membership: Path) -> Iterator[float]:
    """Quotas in CPUs, from the group of the process up to the root."""
    lines = membership.read_text().splitlines() if membership.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mount = control_groups / controllers if controllers else control_groups
        if controllers and "cpu" not in controllers.split(","):
            continue
        # A container may see only its own group, as the root, although the path is that of the host.
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            with suppress(OSError, ValueError):  # no such file, or "max"
                yield _quota(mount / group.relative_to("/"), version=1 if controllers else 2)


def _quota(folder: Path, version: int) -> float:
    """Raises OSError if the folder has no quota file, ValueError if it has no limit."""
    if version == 1:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    else:
        quota, period = map(int, (folder / "cpu.max").read_text().split())
    if quota <= 0 or period <= 0:
        raise ValueError("no limit")
    return quota / period
