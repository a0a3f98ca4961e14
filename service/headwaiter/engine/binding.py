"""Buffers bound to the inputs and outputs of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Buffer(NamedTuple):
    """Contiguous memory that a graph reads or writes."""

    device: str
    dtype: type[np.generic]
    shape: Shape
    pointer: int
    owner: object  # keeps the memory alive

    def as_bytes(self) -> Buffer:
        return self._replace(dtype=np.uint8, shape=(math.prod(self.shape) * np.dtype(self.dtype).itemsize,))


def host_buffer(array: np.ndarray) -> Buffer:
    assert array.flags.c_contiguous
    return Buffer("cpu", array.dtype.type, array.shape, array.ctypes.data, array)


class Binding:
    """A graph with bound buffers, for repeated runs in which only the buffer contents change.

    With `is_device_memory` the graph runs on a device, and host inputs are copied to it before each run.
    """

    def __init__(self, session: Any, *, is_device_memory: bool, on_run: Callable[[], object] = lambda: None) -> None:
        """`on_run` is called after each run, also after a failed one."""
        self._session, self._on_run = session, on_run
        self._binding = session.io_binding()
        self._is_device_memory = is_device_memory
        self._host_inputs: dict[str, Buffer] = {}
        self._owners: list[object] = []

    def input(self, name: str, buffer: Buffer) -> None:
        if self._is_device_memory and buffer.device == "cpu":
            self._host_inputs[name] = buffer  # ONNX Runtime copies at bind time only, so these are bound in run()
        else:
            self._owners.append(buffer.owner)
            self._bind_input(name, buffer)

    def output(self, name: str, buffer: Buffer) -> None:
        self._owners.append(buffer.owner)
        self._binding.bind_output(name, buffer.device, 0, buffer.dtype, buffer.shape, buffer.pointer)

    def run(self) -> None:
        for name, buffer in self._host_inputs.items():
            self._bind_input(name, buffer)
        if self._host_inputs:
            self._binding.synchronize_inputs()
        try:
            self._session.run_with_iobinding(self._binding)
        finally:
            self._on_run()

    def _bind_input(self, name: str, buffer: Buffer) -> None:
        self._binding.bind_input(name, buffer.device, 0, buffer.dtype, buffer.shape, buffer.pointer)
