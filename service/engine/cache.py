"""Preallocated rows: what each sequence being decoded has of keys and values. Rows in use are always the first ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.engine.binding import Binding, on_host
from service.engine.memory import Layout, Memory, Rows
from service.engine.session import Arrays
from service.package import Manifest, State, padded_length

_NUMPY: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16}


class RowCache:
    """Past keys and values grow in place, states that are replaced are swapped after each call. Keys and values of the
    sources are kept only as wide as the longest source in use, so that one long sentence does not make all that follow
    pay for it.

    On a device, past and sources stay in its memory: a step moves none of them. A newcomer's source comes from the
    encoder by way of the host and is sent once; when the width changes, the sources in use go to the host and back.
    States that are replaced are small and stay on the host."""

    def __init__(self, manifest: Manifest, memory: Memory, rows: int, room: int) -> None:
        self.rows, self.room = rows, room
        self.states = {state.input: state.output for state in manifest.states}
        layouts = {state.input: _layout(state, rows, room) for state in manifest.states}
        replaced = {state.input for state in manifest.states if state.kind == "replace"}
        self.past = memory.rows({name: layout for name, layout in layouts.items() if name not in replaced})
        self.held: Arrays = {name: np.zeros(*layout) for name, layout in layouts.items() if name in replaced}
        self.left: Arrays = {name: np.zeros_like(array) for name, array in self.held.items()}
        self._memory = memory
        self._source_ports = [port for port in manifest.graphs["decoder"].inputs if port.name.startswith("cross.")]
        self.cross = self._sources(0)
        self._told_lengths = any(port.name == "source_lengths" for port in manifest.graphs["decoder"].inputs)
        self.width = 0

    def bind(self, binding: Binding, first: int, last: int) -> None:
        """Rows first to last, past and present in the same memory."""
        for name in self.past.layouts:
            place = self.past.place(name, first, last)
            binding.input(name, place)
            binding.output(self.states[name], place)
        for name in self.cross.layouts:
            binding.input(name, self.cross.place(name, first, last))
        for name, array in self.held.items():
            binding.input(name, on_host(array[first:last]))
            binding.output(self.states[name], on_host(self.left[name][first:last]))

    def swap(self, first: int, last: int) -> None:
        """After a call: what it left is what the next one finds."""
        for name, array in self.held.items():
            array[first:last] = self.left[name][first:last]

    def begin(self, row: int) -> None:
        for array in self.held.values():
            array[row] = 0

    def fit_sources(self, longest: int, in_use: int) -> bool:
        """Makes room for sources of this length; gives room back when half of it would do. True if memory moved."""
        wanted = padded_length(longest) if self._told_lengths else longest  # else padding would be seen
        if (
            not self._source_ports
            or wanted == self.width
            or (self._told_lengths and self.width // 2 < wanted < self.width)
        ):
            return False
        fresh = self._sources(wanted)
        if kept := min(wanted, self.width):
            fresh.write(0, {name: array[:, :, :kept] for name, array in self.cross.read(in_use).items()})
        self.cross, self.width = fresh, wanted
        return True

    def place_source(self, row: int, encoded: Arrays, index: int, length: int) -> None:
        self.cross.write(row, {name: encoded[name][index : index + 1, :, :length] for name in self.cross.layouts})
        for name in self.held.keys() & encoded.keys():
            self.held[name][row] = encoded[name][index]

    def copy_past(self, source: int, target: int, length: int) -> None:
        self.past.copy(source, target, length)
        for array in self.held.values():
            array[target] = array[source]

    def move(self, source: int, target: int, length: int) -> None:
        self.copy_past(source, target, length)
        self.cross.copy(source, target)

    def _sources(self, width: int) -> Rows:
        return self._memory.rows(
            {
                port.name: Layout((self.rows, int(port.shape[1]), width, int(port.shape[3])), _NUMPY[port.dtype])
                for port in self._source_ports
            }
        )


def _layout(state: State, rows: int, room: int) -> Layout:
    sizes = {"rows": rows, "room": room}
    shape = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in state.shape)
    return Layout(shape, _NUMPY[state.dtype])


def group_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in groups to be encoded together: alike in length, at most `budget` padded tokens in each."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        width = padded_length(lengths[groups[-1][0]]) if groups else 0
        if groups and padded_length(lengths[index]) * 5 >= width * 4 and (len(groups[-1]) + 1) * width <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
