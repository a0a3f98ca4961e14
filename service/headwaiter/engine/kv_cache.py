"""Preallocated KV cache, one slot per sequence. Active slots are always contiguous from 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headwaiter.engine.binding import Binding, host_buffer
from headwaiter.engine.buffers import Layout, Memory, SlotBuffers
from headwaiter.engine.session import Arrays
from headwaiter.package.manifest import Manifest, State, padded_length

_NUMPY_DTYPES: dict[str, type[np.generic]] = {"float32": np.float32, "float16": np.float16}


class KVCache:
    """Self-attention keys and values (`past`), cross-attention keys and values (`cross`), and replaced states.

    `past` grows in place; replaced states are swapped after each run. `cross` is only as wide as the longest source in
    use, so that one long source does not slow down later requests.

    On a device, `past` and `cross` stay in device memory, and a step transfers neither. The encoder output of a new
    sequence passes through the host once; changing the width of `cross` copies it to the host and back. Replaced states
    are small and stay on the host.
    """

    def __init__(self, manifest: Manifest, memory: Memory, slots: int, max_length: int) -> None:
        self.slots, self.max_length = slots, max_length
        self.output_names = {state.input: state.output for state in manifest.states}
        layouts = {state.input: _layout(state, slots, max_length) for state in manifest.states}
        replaced = {state.input for state in manifest.states if state.kind == "replace"}
        self.past = memory.allocate({name: layout for name, layout in layouts.items() if name not in replaced})
        self.states_in: Arrays = {name: np.zeros(*layout) for name, layout in layouts.items() if name in replaced}
        self.states_out: Arrays = {name: np.zeros_like(array) for name, array in self.states_in.items()}
        self._memory = memory
        self._source_ports = [port for port in manifest.graphs["decoder"].inputs if port.name.startswith("cross.")]
        self.cross = self._allocate_sources(0)
        self._has_source_lengths = any(port.name == "source_lengths" for port in manifest.graphs["decoder"].inputs)
        self.width = 0

    def bind(self, binding: Binding, first: int, last: int) -> None:
        """Bind slots `first` to `last` (exclusive). `past` is input and output in the same memory."""
        for name in self.past.layouts:
            buffer = self.past.buffer(name, first, last)
            binding.input(name, buffer)
            binding.output(self.output_names[name], buffer)
        for name in self.cross.layouts:
            binding.input(name, self.cross.buffer(name, first, last))
        for name, array in self.states_in.items():
            binding.input(name, host_buffer(array[first:last]))
            binding.output(self.output_names[name], host_buffer(self.states_out[name][first:last]))

    def swap(self, first: int, last: int) -> None:
        """Make the states that the last run returned the input of the next run."""
        for name, array in self.states_in.items():
            array[first:last] = self.states_out[name][first:last]

    def reset_slot(self, slot: int) -> None:
        for array in self.states_in.values():
            array[slot] = 0

    def resize_sources(self, longest: int, in_use: int) -> bool:
        """Fit `cross` to sources of up to `longest` tokens, shrinking it if half the width suffices.

        The first `in_use` slots keep their content. Returns True if buffers were reallocated.
        """
        # Without source lengths the decoder would attend to padding, so the width is exact.
        width = padded_length(longest) if self._has_source_lengths else longest
        if (
            not self._source_ports
            or width == self.width
            or (self._has_source_lengths and self.width // 2 < width < self.width)
        ):
            return False
        cross = self._allocate_sources(width)
        if common := min(width, self.width):
            cross.write(0, {name: array[:, :, :common] for name, array in self.cross.read(in_use).items()})
        self.cross, self.width = cross, width
        return True

    def write_source(self, slot: int, encoded: Arrays, index: int, length: int) -> None:
        """Store row `index` of the encoder outputs in `slot`."""
        self.cross.write(slot, {name: encoded[name][index : index + 1, :, :length] for name in self.cross.layouts})
        for name in self.states_in.keys() & encoded.keys():
            self.states_in[name][slot] = encoded[name][index]

    def copy_past(self, source: int, target: int, length: int) -> None:
        self.past.copy(source, target, length)
        for array in self.states_in.values():
            array[target] = array[source]

    def move(self, source: int, target: int, length: int) -> None:
        self.copy_past(source, target, length)
        self.cross.copy(source, target)

    def _allocate_sources(self, width: int) -> SlotBuffers:
        return self._memory.allocate(
            {
                port.name: Layout(
                    (self.slots, int(port.shape[1]), width, int(port.shape[3])), _NUMPY_DTYPES[port.dtype]
                )
                for port in self._source_ports
            }
        )


def _layout(state: State, slots: int, max_length: int) -> Layout:
    sizes = {"rows": slots, "max_length": max_length}
    shape = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in state.shape)
    return Layout(shape, _NUMPY_DTYPES[state.dtype])


def group_by_length(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Group indices of similar lengths for the encoder, with at most `budget` padded tokens per group.

    A single sequence longer than `budget` forms a group of its own.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        width = padded_length(lengths[groups[-1][0]]) if groups else 0
        if groups and padded_length(lengths[index]) * 5 >= width * 4 and (len(groups[-1]) + 1) * width <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
