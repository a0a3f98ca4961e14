"""Where the rows of a decoder lie: in this process's memory, or in that of the device that runs the graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnxruntime

from service.engine.binding import Binding, Place, Shape, on_host
from service.engine.copying import copying_graph

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class Layout(NamedTuple):
    """Of an array in rows: the first axis is the row."""

    shape: Shape
    dtype: type[np.generic]


Layouts = Mapping[str, Layout]


class Rows(Protocol):
    """Arrays by name, zero at first. Lengths are along the second axis of a row; the first are its heads."""

    layouts: Layouts

    def place(self, name: str, first: int, last: int) -> Place:
        """Rows first to last, for a graph to read or write."""

    def copy(self, source: int, target: int, length: int | None = None, /) -> None:
        """One row over another, as far as `length` at least."""

    def write(self, first: int, parts: Mapping[str, np.ndarray]) -> None:
        """Rows from the first on, all arrays; behind what is given there are zeros."""

    def read(self, count: int) -> dict[str, np.ndarray]:
        """The first rows, on the host; to be looked at before they change."""

    def touch(self, length: int) -> None:
        """Memory costs a page fault at first use: better at opening than in a request."""


class Memory(Protocol):
    apart: bool  # whether a graph finds only a copy of what is on the host

    def rows(self, layouts: Layouts) -> Rows: ...


class HostMemory:
    apart = False

    def rows(self, layouts: Layouts) -> Rows:
        return _HostRows(layouts)


class DeviceMemory:
    """For any device of the runtime. A row is copied whole, wherever it ends: one call for all arrays."""

    apart = True

    def __init__(self, device: str) -> None:
        self.device = device
        self._copiers: dict[int, Any] = {}  # sessions, by how many arrays they copy at once

    def rows(self, layouts: Layouts) -> Rows:
        return _DeviceRows(layouts, self)

    def copy(self, pairs: list[tuple[Place, Place]]) -> None:
        """From the first to the second of each pair, on the device, from it or to it."""
        pairs = [pair for pair in pairs if math.prod(pair[0].shape)]
        if not pairs:  # no such states, or no source yet
            return
        if len(pairs) not in self._copiers:
            self._copiers[len(pairs)] = self._open(copying_graph(len(pairs)))
        binding = Binding(self._copiers[len(pairs)], apart=True)
        for index, (source, target) in enumerate(pairs):
            binding.input(f"from.{index}", source.as_bytes())
            binding.output(f"to.{index}", target.as_bytes())
        binding.run()

    def _open(self, graph: bytes) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(graph, options, providers=[PROVIDERS[self.device]])


def memory_of(device: str) -> Memory:
    return HostMemory() if device == "cpu" else DeviceMemory(device)


class _HostRows:
    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self._arrays = {name: np.zeros(layout.shape, layout.dtype) for name, layout in layouts.items()}

    def place(self, name: str, first: int, last: int) -> Place:
        return on_host(self._arrays[name][first:last])

    def copy(self, source: int, target: int, length: int | None = None) -> None:
        for array in self._arrays.values():
            array[target, :, :length] = array[source, :, :length]

    def write(self, first: int, parts: Mapping[str, np.ndarray]) -> None:
        for name, array in self._arrays.items():
            _fill(array[first : first + len(parts[name])], parts[name])

    def read(self, count: int) -> dict[str, np.ndarray]:
        return {name: array[:count] for name, array in self._arrays.items()}

    def touch(self, length: int) -> None:
        for array in self._arrays.values():
            array[:, :, :length] = 0


class _DeviceRows:
    def __init__(self, layouts: Layouts, memory: DeviceMemory) -> None:
        self.layouts = layouts
        self._memory = memory
        self._values = {name: self._zeros(layout) for name, layout in layouts.items()}

    def place(self, name: str, first: int, last: int) -> Place:
        value, (shape, dtype) = self._values[name], self.layouts[name]
        pointer = value.data_ptr() + first * (value.tensor_size_in_bytes() // shape[0])
        return Place(self._memory.device, dtype, (last - first, *shape[1:]), pointer, value)

    def copy(self, source: int, target: int, _length: int | None = None) -> None:
        self._memory.copy(
            [(self.place(name, source, source + 1), self.place(name, target, target + 1)) for name in self.layouts]
        )

    def write(self, first: int, parts: Mapping[str, np.ndarray]) -> None:
        pairs = []
        for name, (shape, dtype) in self.layouts.items():
            whole = np.empty((len(parts[name]), *shape[1:]), dtype)
            _fill(whole, parts[name])
            pairs.append((on_host(whole), self.place(name, first, first + len(whole))))
        self._memory.copy(pairs)

    def read(self, count: int) -> dict[str, np.ndarray]:
        found = {name: np.empty((count, *shape[1:]), dtype) for name, (shape, dtype) in self.layouts.items()}
        self._memory.copy([(self.place(name, 0, count), on_host(array)) for name, array in found.items()])
        return found

    def touch(self, length: int) -> None:
        """It was filled with zeros when it was made."""

    def _zeros(self, layout: Layout) -> Any:
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(layout.shape, layout.dtype, self._memory.device)
        if math.prod(layout.shape):  # not so before the first source
            value.update_inplace(np.zeros(layout.shape, layout.dtype))
        return value


def _fill(rows: np.ndarray, part: np.ndarray) -> None:
    length = part.shape[2]
    rows[:, :, :length] = part
    rows[:, :, length:] = 0
