"""Numbers of one model in one process, kept in memory-mapped files. Not for use across a fork."""

from __future__ import annotations

import fcntl
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.utils import INF, floatToGoString

from service.metrics.folder import ALIVE, drop_gauges, exclusive, file_in, made_whole, unused
from service.metrics.table import KINDS, PREFIX, Metric


class Number:
    """A counter's, a gauge's or a bucket's value: in its file as soon as it changes."""

    __slots__ = ("_file", "_key", "_lock", "_value")

    def __init__(self, file: MmapedDict, key: str, lock: Lock) -> None:
        self._file, self._key, self._lock = file, key, lock
        self._value = 0.0
        self.set(0.0)

    def add(self, amount: float = 1.0) -> None:
        with self._lock:
            self._value += amount
            self._file.write_value(self._key, self._value, 0.0)

    def set(self, value: float) -> None:
        with self._lock:
            self._value = value
            self._file.write_value(self._key, value, 0.0)


class Distribution:
    """A histogram's sum and buckets, each bucket counting its own alone: the page adds them up."""

    __slots__ = ("_bounds", "_buckets", "_sum")

    def __init__(self, bounds: Sequence[float], total: Number, buckets: Sequence[Number]) -> None:
        self._bounds, self._sum, self._buckets = bounds, total, buckets

    def observe(self, amount: float) -> None:
        self._sum.add(amount)
        self._buckets[bisect_left(self._bounds, amount)].add()


class Writer:
    def __init__(self, folder: Path) -> None:
        self._lock = Lock()
        self._making = Lock()
        self._numbers: dict[str, Number] = {}
        self._folder = unused(folder)
        with exclusive(folder), made_whole(self._folder) as making:
            self._mark = (making / ALIVE).open("w")  # open, and so locked, as long as the process lives
            fcntl.flock(self._mark, fcntl.LOCK_EX)
            self._files = {kind: MmapedDict(str(file_in(making, kind))) for kind in KINDS}

    def number(self, metric: Metric, labels: dict[str, str]) -> Number:
        name = PREFIX + metric.name
        return self._number(metric, f"{name}_total" if metric.kind == "counter" else name, labels)

    def distribution(self, metric: Metric, labels: dict[str, str]) -> Distribution:
        name = PREFIX + metric.name
        bounds = (*metric.buckets, INF)
        buckets = [self._number(metric, f"{name}_bucket", labels | {"le": floatToGoString(each)}) for each in bounds]
        return Distribution(metric.buckets, self._number(metric, f"{name}_sum", labels), buckets)

    def end_gauges(self) -> None:
        """They leave the page; what is counted after that still counts."""
        with exclusive(self._folder.parent):
            drop_gauges(self._folder)

    def _number(self, metric: Metric, sample: str, labels: dict[str, str]) -> Number:
        """One for each key: two would overwrite each other's value."""
        key = mmap_key(PREFIX + metric.name, sample, list(labels), list(labels.values()), metric.help)
        with self._making:
            if key not in self._numbers:
                self._numbers[key] = Number(self._files[metric.kind], key, self._lock)
            return self._numbers[key]
