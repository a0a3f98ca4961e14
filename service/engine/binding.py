"""Memory bound to the inputs and outputs of a graph."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Place(NamedTuple):
    """A piece of memory that a graph reads or writes."""

    device: str
    dtype: type[np.generic]
    shape: Shape
    pointer: int
    owner: object  # who frees it

    def as_bytes(self) -> Place:
        return self._replace(dtype=np.uint8, shape=(math.prod(self.shape) * np.dtype(self.dtype).itemsize,))


def on_host(array: np.ndarray) -> Place:
    assert array.flags.c_contiguous
    return Place("cpu", array.dtype.type, array.shape, array.ctypes.data, array)


class Binding:
    """For calls that only change what is in the memory. `apart`: the graph computes elsewhere than on the host."""

    def __init__(self, session: Any, *, apart: bool) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._apart = apart
        self._sent: dict[str, Place] = {}
        self._kept: list[object] = []

    def input(self, name: str, place: Place) -> None:
        if self._apart and place.device == "cpu":
            self._sent[name] = place  # the runtime would copy it now, and not again when the graph is run
        else:
            self._kept.append(place.owner)
            self._bind_input(name, place)

    def output(self, name: str, place: Place) -> None:
        self._kept.append(place.owner)
        self._binding.bind_output(name, place.device, 0, place.dtype, place.shape, place.pointer)

    def run(self) -> None:
        for name, place in self._sent.items():
            self._bind_input(name, place)
        if self._sent:
            self._binding.synchronize_inputs()
        self._session.run_with_iobinding(self._binding)

    def _bind_input(self, name: str, place: Place) -> None:
        self._binding.bind_input(name, place.device, 0, place.dtype, place.shape, place.pointer)
