"""Per-slot buffers of a decoder, in host memory or in the memory of the device that runs the graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnxruntime

from headwaiter.engine.binding import Binding, Buffer, Shape, host_buffer
from headwaiter.engine.device_copy import read_copy_graph, split_into_runs

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class Layout(NamedTuple):
    """Shape and dtype of an array whose first axis is the slot."""

    shape: Shape
    dtype: type[np.generic]


Layouts = Mapping[str, Layout]


class SlotBuffers(Protocol):
    """Named arrays of shape [slots, heads, length, ...], initially zero."""

    layouts: Layouts

    def buffer(self, name: str, first: int, last: int) -> Buffer:
        """Return slots `first` to `last` (exclusive) as a buffer for a graph to read or write."""

    def copy(self, source: int, target: int, length: int | None = None, /) -> None:
        """Copy at least the first `length` positions of slot `source` to slot `target` (default: all)."""

    def write(self, first: int, parts: Mapping[str, np.ndarray]) -> None:
        """Write slots from `first` on, in all arrays; positions beyond the given length become zero."""

    def read(self, count: int) -> dict[str, np.ndarray]:
        """Return the first `count` slots as host arrays, which may be views: use them before the next write."""

    def prefault(self, length: int) -> None:
        """Touch the first `length` positions, so that page faults happen at start-up and not in a request."""


class Memory(Protocol):
    is_device_memory: bool  # whether graphs see copies of host arrays instead of the arrays themselves

    def allocate(self, layouts: Layouts) -> SlotBuffers: ...


class HostMemory:
    is_device_memory = False

    def allocate(self, layouts: Layouts) -> SlotBuffers:
        return _HostSlotBuffers(layouts)


class DeviceMemory:
    """Memory of any ONNX Runtime device. Slots are copied whole, many arrays in one run."""

    is_device_memory = True

    def __init__(self, device: str) -> None:
        self.device = device
        self._copiers: dict[int, Any] = {}  # sessions by number of arrays that they copy

    def allocate(self, layouts: Layouts) -> SlotBuffers:
        return _DeviceSlotBuffers(layouts, self)

    def copy(self, pairs: list[tuple[Buffer, Buffer]]) -> None:
        """Copy the first buffer of each pair to the second; each may be on the host or the device."""
        pairs = [pair for pair in pairs if math.prod(pair[0].shape)]  # no bytes before a source was written
        for which in split_into_runs(len(pairs)):
            self._copy_in_one_run(pairs[which])

    def _copy_in_one_run(self, pairs: list[tuple[Buffer, Buffer]]) -> None:
        width = len(pairs)
        if width not in self._copiers:
            self._copiers[width] = self._open(read_copy_graph(width))
        binding = Binding(self._copiers[width], is_device_memory=True)
        for index, (source, target) in enumerate(pairs):
            binding.input(f"from.{index}", source.as_bytes())
            binding.output(f"to.{index}", target.as_bytes())
        binding.run()

    def _open(self, graph: bytes) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(graph, options, providers=[PROVIDERS[self.device]])


def open_memory(device: str) -> Memory:
    return HostMemory() if device == "cpu" else DeviceMemory(device)


class _HostSlotBuffers:
    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self._arrays = {name: np.zeros(layout.shape, layout.dtype) for name, layout in layouts.items()}

    def buffer(self, name: str, first: int, last: int) -> Buffer:
        return host_buffer(self._arrays[name][first:last])

    def copy(self, source: int, target: int, length: int | None = None) -> None:
        for array in self._arrays.values():
            array[target, :, :length] = array[source, :, :length]

    def write(self, first: int, parts: Mapping[str, np.ndarray]) -> None:
        for name, array in self._arrays.items():
            _fill(array[first : first + len(parts[name])], parts[name])

    def read(self, count: int) -> dict[str, np.ndarray]:
        return {name: array[:count] for name, array in self._arrays.items()}

    def prefault(self, length: int) -> None:
        for array in self._arrays.values():
            array[:, :, :length] = 0


class _DeviceSlotBuffers:
    def __init__(self, layouts: Layouts, memory: DeviceMemory) -> None:
        self.layouts = layouts
        self._memory = memory
        self._values = {name: self._zeros(layout) for name, layout in layouts.items()}

    def buffer(self, name: str, first: int, last: int) -> Buffer:
        value, (shape, dtype) = self._values[name], self.layouts[name]
        pointer = value.data_ptr() + first * (value.tensor_size_in_bytes() // shape[0])
        return Buffer(self._memory.device, dtype, (last - first, *shape[1:]), pointer, value)

    def copy(self, source: int, target: int, _length: int | None = None) -> None:
        self._memory.copy(
            [(self.buffer(name, source, source + 1), self.buffer(name, target, target + 1)) for name in self.layouts]
        )

    def write(self, first: int, parts: Mapping[str, np.ndarray]) -> None:
        pairs = []
        for name, (shape, dtype) in self.layouts.items():
            padded = np.empty((len(parts[name]), *shape[1:]), dtype)
            _fill(padded, parts[name])
            pairs.append((host_buffer(padded), self.buffer(name, first, first + len(padded))))
        self._memory.copy(pairs)

    def read(self, count: int) -> dict[str, np.ndarray]:
        arrays = {name: np.empty((count, *shape[1:]), dtype) for name, (shape, dtype) in self.layouts.items()}
        self._memory.copy([(self.buffer(name, 0, count), host_buffer(array)) for name, array in arrays.items()])
        return arrays

    def prefault(self, length: int) -> None:
        """Do nothing: allocation has already written zeros."""

    def _zeros(self, layout: Layout) -> Any:
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(layout.shape, layout.dtype, self._memory.device)
        if math.prod(layout.shape):  # zero width before the first source
            value.update_inplace(np.zeros(layout.shape, layout.dtype))
        return value


def _fill(slots: np.ndarray, part: np.ndarray) -> None:
    length = part.shape[2]
    slots[:, :, :length] = part
    slots[:, :, length:] = 0
