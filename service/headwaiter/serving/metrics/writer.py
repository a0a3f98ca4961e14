"""Values of one model in one process, stored in memory-mapped files. Not fork-safe.

The metric classes of prometheus_client cannot do this: their multiprocess mode is chosen by an environment variable
when the library is first imported, for the whole process and so for Ray's own metrics too.
"""

from __future__ import annotations

import fcntl
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.utils import INF, floatToGoString

from headwaiter.serving.metrics.definitions import KINDS, PREFIX, Metric
from headwaiter.serving.metrics.folder import (
    ALIVE,
    atomic_directory,
    exclusive_lock,
    new_writer_directory,
    remove_gauges,
    values_file,
)


class StoredValue:
    """Value of a counter, a gauge or a histogram bucket, written to its file on every change."""

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


class StoredHistogram:
    """Sum and buckets of a histogram. Buckets are stored non-cumulative; the exporter accumulates them."""

    __slots__ = ("_bounds", "_buckets", "_sum")

    def __init__(self, bounds: Sequence[float], total: StoredValue, buckets: Sequence[StoredValue]) -> None:
        self._bounds, self._sum, self._buckets = bounds, total, buckets

    def observe(self, amount: float) -> None:
        self._sum.add(amount)
        self._buckets[bisect_left(self._bounds, amount)].add()


class Writer:
    def __init__(self, folder: Path) -> None:
        self._lock = Lock()
        self._creation_lock = Lock()
        self._values: dict[str, StoredValue] = {}
        self._folder = new_writer_directory(folder)
        with exclusive_lock(folder), atomic_directory(self._folder) as staging:
            self._lock_file = (staging / ALIVE).open("w")  # stays open, and so locked, until the process ends
            fcntl.flock(self._lock_file, fcntl.LOCK_EX)
            self._files = {kind: MmapedDict(str(values_file(staging, kind))) for kind in KINDS}

    def open_value(self, metric: Metric, labels: dict[str, str]) -> StoredValue:
        name = PREFIX + metric.name
        return self._open_value(metric, f"{name}_total" if metric.kind == "counter" else name, labels)

    def open_histogram(self, metric: Metric, labels: dict[str, str]) -> StoredHistogram:
        name = PREFIX + metric.name
        bounds = (*metric.buckets, INF)
        buckets = [
            self._open_value(metric, f"{name}_bucket", labels | {"le": floatToGoString(bound)}) for bound in bounds
        ]
        return StoredHistogram(metric.buckets, self._open_value(metric, f"{name}_sum", labels), buckets)

    def discard_gauges(self) -> None:
        """Stop exporting the gauges; counters recorded later are still exported."""
        with exclusive_lock(self._folder.parent):
            remove_gauges(self._folder)

    def _open_value(self, metric: Metric, sample: str, labels: dict[str, str]) -> StoredValue:
        """The value of a series. There is one object per series: two would overwrite each other."""
        key = mmap_key(PREFIX + metric.name, sample, list(labels), list(labels.values()), metric.help)
        with self._creation_lock:
            if key not in self._values:
                self._values[key] = StoredValue(self._files[metric.kind], key, self._lock)
            return self._values[key]
