"""A node's folder of metrics: in it a folder per writer, and one for all that have ended.

A writer holds a lock on its own file `alive`, which the kernel frees however the writer ends. That tells the dead from
the living where process numbers, which are given out again, would not. What the dead left is folded into a new folder
that names those it replaces and comes into being whole, by a rename: before it they count, after it they do not, and
whoever looks next removes them. So a process that dies while folding neither loses nor doubles a count.
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

from service.metrics.table import Kind

ALIVE = "alive"
_REPLACES = "replaces"
_LOCK = "lock"
_UNFINISHED = "."  # begins the name of a folder that is being made
_SUMMED: tuple[Kind, ...] = ("counter", "histogram")


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Writers begin, and the page is read, one at a time."""
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unused(folder: Path) -> Path:
    return folder / f"{os.getpid()}-{secrets.token_hex(6)}"


@contextmanager
def made_whole(writer: Path) -> Iterator[Path]:
    """A folder under an unfinished name, which gets its own when all is in it. Only while exclusive."""
    making = writer.with_name(_UNFINISHED + writer.name)
    making.mkdir()
    yield making
    making.rename(writer)


def file_in(writer: Path, kind: Kind) -> Path:
    """prometheus_client reads the kind from the name's first part, and a gauge's mode from its second."""
    return writer / f"{kind}_values.db"


def files(folder: Path) -> list[str]:
    """Those that count, after the dead were settled."""
    return sorted(str(file) for writer in _writers(folder) for file in writer.glob("*.db"))


def settle(folder: Path) -> None:
    """Takes the gauges of the dead away, and folds their counts into one. Only while exclusive."""
    for unfinished in folder.glob(f"{_UNFINISHED}*/"):
        shutil.rmtree(unfinished)
    for writer in _writers(folder):
        _drop_replaced(writer)
    dead = [writer for writer in _writers(folder) if not _is_alive(writer)]
    for writer in dead:
        drop_gauges(writer)
    if len(dead) > 1:
        _fold(folder, dead)


def drop_gauges(writer: Path) -> None:
    for file in writer.glob("gauge_*.db"):
        file.unlink(missing_ok=True)


def _writers(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(_UNFINISHED)]


def _is_alive(writer: Path) -> bool:
    try:
        with (writer / ALIVE).open() as mark:
            fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _fold(folder: Path, dead: Sequence[Path]) -> None:
    folded = unused(folder)
    with made_whole(folded) as making:
        for kind in _SUMMED:
            _write_sums(file_in(making, kind), [file_in(writer, kind) for writer in dead])
        (making / _REPLACES).write_text("\n".join(writer.name for writer in dead))
    _drop_replaced(folded)


def _write_sums(target: Path, sources: Sequence[Path]) -> None:
    sums: defaultdict[str, float] = defaultdict(float)
    for source in sources:
        for key, value, _, _ in MmapedDict.read_all_values_from_file(str(source)):
            sums[key] += value
    written = MmapedDict(str(target))
    for key, value in sums.items():
        written.write_value(key, value, 0.0)
    written.close()


def _drop_replaced(writer: Path) -> None:
    names = writer / _REPLACES
    if names.is_file():
        for replaced in map(writer.with_name, names.read_text().splitlines()):
            if replaced.exists():
                shutil.rmtree(replaced)
        names.unlink()
