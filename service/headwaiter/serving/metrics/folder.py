"""Metrics directory of a node: one subdirectory per writer, and one with the merged values of ended writers.

A writer holds a lock on its file `alive`, which the kernel releases however the process ends; process ids are reused
and would not identify dead writers. Values of dead writers are merged into a new subdirectory that lists the ones it
replaces and appears atomically, by a rename. The replaced subdirectories are deleted afterwards, or by the next process
that merges, so a crash during a merge neither loses nor duplicates counts.

prometheus_client lacks this: it keeps the files of every ended process, so they would grow with restarts, and relies on
being told which process ids are dead.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.mmap_dict import MmapedDict

from headwaiter.serving.metrics.definitions import Kind

ALIVE = "alive"
_REPLACES = "replaces"
_LOCK = "lock"
_STAGING_PREFIX = "."  # of directories that are not committed yet
_MERGED_KINDS: tuple[Kind, ...] = ("counter", "histogram")


@contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Lock the metrics directory, for creating a writer or collecting."""
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def new_writer_directory(folder: Path) -> Path:
    return folder / f"{os.getpid()}-{secrets.token_hex(6)}"


@contextmanager
def atomic_directory(writer: Path) -> Iterator[Path]:
    """Yield a staging directory that is renamed to `writer` at the end of the block. Requires the exclusive lock."""
    staging = writer.with_name(_STAGING_PREFIX + writer.name)
    staging.mkdir()
    yield staging
    staging.rename(writer)


def values_file(writer: Path, kind: Kind) -> Path:
    """File of a kind; prometheus_client parses the kind, and the mode of a gauge, from the file name."""
    return writer / f"{kind}_values.db"


def value_files(folder: Path) -> list[str]:
    """Files to export. Call `merge_dead_writers` first."""
    return sorted(str(file) for writer in _writers(folder) for file in writer.glob("*.db"))


def merge_dead_writers(folder: Path) -> None:
    """Delete the gauges of dead writers and merge their counters and histograms. Requires the exclusive lock."""
    for staging in folder.glob(f"{_STAGING_PREFIX}*/"):
        shutil.rmtree(staging)
    for writer in _writers(folder):
        _remove_replaced(writer)
    dead = [writer for writer in _writers(folder) if not _is_alive(writer)]
    for writer in dead:
        remove_gauges(writer)
    if len(dead) > 1:
        _merge(folder, dead)


def remove_gauges(writer: Path) -> None:
    for file in writer.glob("gauge_*.db"):
        file.unlink(missing_ok=True)


def _writers(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(_STAGING_PREFIX)]


def _is_alive(writer: Path) -> bool:
    try:
        with (writer / ALIVE).open() as lock_file:
            fcntl.flock(lock_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _merge(folder: Path, dead: Sequence[Path]) -> None:
    merged = new_writer_directory(folder)
    with atomic_directory(merged) as staging:
        for kind in _MERGED_KINDS:
            _write_sums(values_file(staging, kind), [values_file(writer, kind) for writer in dead])
        (staging / _REPLACES).write_text("\n".join(writer.name for writer in dead))
    _remove_replaced(merged)


def _write_sums(target: Path, sources: Sequence[Path]) -> None:
    sums: defaultdict[str, float] = defaultdict(float)
    for source in sources:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(source)):
            sums[key] += value
    merged = MmapedDict(str(target))
    for key, value in sums.items():
        merged.write_value(key, value, 0.0)
    merged.close()


def _remove_replaced(writer: Path) -> None:
    names = writer / _REPLACES
    if names.is_file():
        for replaced in map(writer.with_name, names.read_text().splitlines()):
            if replaced.exists():
                shutil.rmtree(replaced)
        names.unlink()
