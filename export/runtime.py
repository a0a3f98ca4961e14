"""Runs a package's graphs for the checks: plain sessions, and decoding steps over caches updated in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from service.package import State

Arrays = dict[str, np.ndarray]
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


class Runtime:
    """The graphs in a folder, opened on the CPU."""

    def __init__(self, folder: Path, graphs: Sequence[str], states: Sequence[State] = ()) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # how a small convolution is divided among several depends on the batch
        options.log_severity_level = 3
        self.states = states
        self._sessions = {
            name: onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
            for name in graphs
        }

    def run(self, graph: str, feeds: Mapping[str, np.ndarray]) -> Arrays:
        session = self._sessions[graph]
        wanted = [port.name for port in session.get_outputs()]
        return dict(zip(wanted, session.run(wanted, self._typed(session, feeds)), strict=True))

    def caches(self, rows: int, room: int) -> Arrays:
        sizes = {"rows": rows, "room": room}
        return {
            state.input: np.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in state.shape], state.dtype)
            for state in self.states
        }

    def step(self, feeds: Mapping[str, np.ndarray], caches: Arrays) -> Arrays:
        """One call of the decoder; caches that grow are bound as input and output alike, others are swapped."""
        session = self._sessions["decoder"]
        binding: Any = session.io_binding()
        for name, value in self._typed(session, feeds).items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        fresh = {state.input: np.empty_like(caches[state.input]) for state in self.states if state.kind == "replace"}
        for state in self.states:
            cache = caches[state.input]
            after = fresh.get(state.input, cache)
            binding.bind_input(state.input, "cpu", 0, cache.dtype.type, cache.shape, cache.ctypes.data)
            binding.bind_output(state.output, "cpu", 0, after.dtype.type, after.shape, after.ctypes.data)
        kept = {state.output for state in self.states}
        wanted = [port.name for port in session.get_outputs() if port.name not in kept]
        for name in wanted:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        caches |= fresh
        return {name: value.numpy() for name, value in zip(wanted, binding.get_outputs()[len(kept) :], strict=True)}

    @staticmethod
    def _typed(session: Any, feeds: Mapping[str, np.ndarray]) -> Arrays:
        kinds = {port.name: _NUMPY[port.type] for port in session.get_inputs()}
        return {name: np.asarray(value, kinds[name]) for name, value in feeds.items() if name in kinds}
