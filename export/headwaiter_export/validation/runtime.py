"""ONNX Runtime sessions for the parity checks, with decoding steps that update caches in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from headwaiter.package.manifest import State
from headwaiter_export.arrays import Arrays

_NUMPY_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


class Runtime:
    """The graphs in a directory, running on the CPU."""

    def __init__(self, folder: Path, graphs: Sequence[str], states: Sequence[State] = ()) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # with several, results of small convolutions depend on the batch size
        options.log_severity_level = 3
        self.states = states
        self._sessions = {
            name: onnxruntime.InferenceSession(folder / f"{name}.onnx", options, providers=["CPUExecutionProvider"])
            for name in graphs
        }

    def run(self, graph: str, feeds: Mapping[str, np.ndarray]) -> Arrays:
        session = self._sessions[graph]
        output_names = [output.name for output in session.get_outputs()]
        return dict(zip(output_names, session.run(output_names, self._cast_feeds(session, feeds)), strict=True))

    def caches(self, rows: int, max_length: int) -> Arrays:
        """Return all decoder states, filled with zeros."""
        sizes = {"rows": rows, "max_length": max_length}
        return {
            state.input: np.zeros([sizes[axis] if isinstance(axis, str) else axis for axis in state.shape], state.dtype)
            for state in self.states
        }

    def step(self, feeds: Mapping[str, np.ndarray], caches: Arrays) -> Arrays:
        """Run one decoder step and update `caches`. States of kind "append" are bound as input and output at once."""
        session = self._sessions["decoder"]
        binding: Any = session.io_binding()
        for name, value in self._cast_feeds(session, feeds).items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        replacements = {
            state.input: np.empty_like(caches[state.input]) for state in self.states if state.kind == "replace"
        }
        for state in self.states:
            cache = caches[state.input]
            updated = replacements.get(state.input, cache)
            binding.bind_input(state.input, "cpu", 0, cache.dtype.type, cache.shape, cache.ctypes.data)
            binding.bind_output(state.output, "cpu", 0, updated.dtype.type, updated.shape, updated.ctypes.data)
        state_names = {state.output for state in self.states}
        output_names = [output.name for output in session.get_outputs() if output.name not in state_names]
        for name in output_names:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        caches |= replacements
        values = binding.get_outputs()[len(state_names) :]
        return {name: value.numpy() for name, value in zip(output_names, values, strict=True)}

    @staticmethod
    def _cast_feeds(session: Any, feeds: Mapping[str, np.ndarray]) -> Arrays:
        """Drop values that are not inputs of the graph and convert the others to the input types."""
        dtypes = {model_input.name: _NUMPY_DTYPES[model_input.type] for model_input in session.get_inputs()}
        return {name: np.asarray(value, dtypes[name]) for name, value in feeds.items() if name in dtypes}
