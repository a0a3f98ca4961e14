"""Preallocated rows: what each sequence being decoded has of keys and values. Rows in use are always the first ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from service.engine.session import Arrays, Binding
from service.package import Manifest, State, padded_length

_NUMPY = {"float32": np.float32, "float16": np.float16}


class RowCache:
    """Past keys and values grow in place, states that are replaced are swapped after each call. Keys and values of the
    sources are kept only as wide as the longest source in use, so that one long sentence does not make all that follow
    pay for it."""

    def __init__(self, manifest: Manifest, rows: int, room: int) -> None:
        self.rows, self.room = rows, room
        self.states = {state.input: state.output for state in manifest.states}
        made = {state.input: np.zeros(_shape(state, rows, room), _NUMPY[state.dtype]) for state in manifest.states}
        replaced = {state.input for state in manifest.states if state.kind == "replace"}
        self.past: Arrays = {name: array for name, array in made.items() if name not in replaced}
        self.held: Arrays = {name: array for name, array in made.items() if name in replaced}
        self.left: Arrays = {name: np.zeros_like(array) for name, array in self.held.items()}
        self.cross: Arrays = {
            port.name: np.zeros((rows, int(port.shape[1]), 0, int(port.shape[3])), _NUMPY[port.dtype])
            for port in manifest.graphs["decoder"].inputs
            if port.name.startswith("cross.")
        }
        self._told_lengths = any(port.name == "source_lengths" for port in manifest.graphs["decoder"].inputs)
        self.width = 0

    def bind(self, binding: Binding, first: int, last: int) -> None:
        """Rows first to last, past and present in the same memory."""
        for name, array in self.past.items():
            part = array[first:last]
            binding.input(name, part, part.shape)
            binding.output(self.states[name], part, part.shape)
        for name, array in self.cross.items():
            part = array[first:last]
            binding.input(name, part, part.shape)
        for name, array in self.held.items():
            part, left = array[first:last], self.left[name][first:last]
            binding.input(name, part, part.shape)
            binding.output(self.states[name], left, left.shape)

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
        if not self.cross or wanted == self.width or (self._told_lengths and self.width // 2 < wanted < self.width):
            return False
        kept = min(wanted, self.width)
        for name, array in self.cross.items():
            rows, heads, _, size = array.shape
            fresh = np.zeros((rows, heads, wanted, size), array.dtype)
            fresh[:in_use, :, :kept] = array[:in_use, :, :kept]
            self.cross[name] = fresh
        self.width = wanted
        return True

    def place_source(self, row: int, encoded: Arrays, index: int, length: int) -> None:
        for name, array in self.cross.items():
            array[row, :, :length] = encoded[name][index, :, :length]
            array[row, :, length:] = 0
        for name in self.held.keys() & encoded.keys():
            self.held[name][row] = encoded[name][index]

    def copy_past(self, source: int, target: int, length: int) -> None:
        for array in self.past.values():
            array[target, :, :length] = array[source, :, :length]
        for array in self.held.values():
            array[target] = array[source]

    def move(self, source: int, target: int, length: int) -> None:
        self.copy_past(source, target, length)
        for array in self.cross.values():
            array[target] = array[source]

    def touch(self, length: int) -> None:
        """Memory costs a page fault at first use: better at opening than in a request."""
        for array in self.past.values():
            array[:, :, :length] = 0


def _shape(state: State, rows: int, room: int) -> list[int]:
    sizes = {"rows": rows, "room": room}
    return [sizes[axis] if isinstance(axis, str) else axis for axis in state.shape]


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
