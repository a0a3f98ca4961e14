"""Runs a package's graphs with ONNX Runtime only, independently of the serving engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from headwaiter.package.manifest import Package, padded_length

Arrays = dict[str, np.ndarray]


class Graphs:
    def __init__(self, package: Package) -> None:
        self.manifest = package.manifest
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self._sessions = {
            name: onnxruntime.InferenceSession(package.file(graph.file), options, providers=["CPUExecutionProvider"])
            for name, graph in package.manifest.graphs.items()
        }

    def run(self, graph: str, feeds: Arrays) -> Arrays:
        session = self._sessions[graph]
        names = [port.name for port in session.get_outputs()]
        return dict(zip(names, session.run(names, feeds), strict=True))

    def step(self, feeds: Arrays, caches: Arrays) -> Arrays:
        """Run the decoder once; each cache is a single buffer, bound as input and output."""
        binding: Any = self._sessions["decoder"].io_binding()
        inputs = {port.name for port in self.manifest.graphs["decoder"].inputs}
        for name in inputs & feeds.keys():
            binding.bind_cpu_input(name, np.ascontiguousarray(feeds[name]))
        for state in self.manifest.states:
            cache = caches[state.input]
            assert cache.flags.c_contiguous
            buffer = ("cpu", 0, cache.dtype.type, cache.shape, cache.ctypes.data)
            binding.bind_input(state.input, *buffer)
            binding.bind_output(state.output, *buffer)
        states = [state.output for state in self.manifest.states]
        outputs = [port.name for port in self.manifest.graphs["decoder"].outputs if port.name not in states]
        for name in outputs:
            binding.bind_output(name)
        self._sessions["decoder"].run_with_iobinding(binding)
        return dict(zip(outputs, [value.numpy() for value in binding.get_outputs()[len(states) :]], strict=True))

    def caches(self, rows: int, max_length: int) -> Arrays:
        sizes: dict[Any, int] = {"rows": rows, "max_length": max_length}
        return {
            state.input: np.zeros([sizes.get(axis, axis) for axis in state.shape], state.dtype)
            for state in self.manifest.states
        }


class DecoderBatch:
    """A batch over one set of cache buffers, to which rows can be added while others are being decoded."""

    def __init__(self, graphs: Graphs, rows: int, max_length: int, source: int = 0) -> None:
        self.graphs, self.row_count = graphs, 0
        self.caches = graphs.caches(rows, max_length)
        self.positions = np.zeros(rows, np.int32)
        self.source_lengths = np.zeros(rows, np.int32)
        self.cross: Arrays = {}
        for port in graphs.manifest.graphs["encoder"].outputs if "encoder" in graphs.manifest.graphs else ():
            _, heads, length, size = port.shape
            shape = (rows, heads, source if isinstance(length, str) else length, size)
            self.cross[port.name] = np.zeros(shape, port.dtype)

    def add_rows(self, source: Arrays, rows: int) -> slice:
        """Encode `source` into the next `rows` rows and return their slice."""
        added = slice(self.row_count, self.row_count + rows)
        if source:
            for name, value in self.graphs.run("encoder", source).items():
                self.cross[name][added, :, : value.shape[2]] = value
            if "lengths" in source:
                self.source_lengths[added] = source["lengths"]
        self.row_count = added.stop
        return added

    def advance(self, rows: slice, feeds: Arrays, lengths: np.ndarray) -> Arrays:
        positions = self.positions[rows]
        steps = next(iter(feeds.values())).shape[1]
        total = int((positions + lengths).max()) if positions.any() else steps
        outputs = self.graphs.step(
            {
                **feeds,
                **{name: value[rows] for name, value in self.cross.items()},
                "source_lengths": self.source_lengths[rows],
                "lengths": lengths.astype(np.int32),
                "positions": positions,
                "total": np.array(total, np.int32),
                "k": np.array([3]),
            },
            {name: value[rows] for name, value in self.caches.items()},
        )
        self.positions[rows] += lengths.astype(np.int32)
        return outputs


def greedy(
    graphs: Graphs,
    sources: Sequence[Arrays],
    prompts: Sequence[Sequence[int]],
    steps: int,
    joins: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Decode greedily and return tokens [rows, steps] and logits [rows, steps, vocabulary].

    Row i is added before step `joins[i]` (default: 0); `joins` is ascending.
    """
    rows, joins = len(prompts), joins or [0] * len(prompts)
    assert list(joins) == sorted(joins)
    max_length = min(graphs.manifest.limits["max_length"], max(map(len, prompts)) + steps + joins[-1])
    longest = max((source["tokens"].shape[1] for source in sources if "tokens" in source), default=0)
    longest = max([longest, *(_encoded_length(graphs, source) for source in sources)])
    batch = DecoderBatch(graphs, rows, max_length, longest)
    tokens: list[list[int]] = [[] for _ in range(rows)]
    logits: list[list[np.ndarray]] = [[] for _ in range(rows)]

    def record(advanced: slice, outputs: Arrays) -> None:
        assert (np.diff(outputs["top_scores"], axis=1) <= 0).all()
        for index, row in enumerate(range(advanced.start, advanced.stop)):
            tokens[row].append(int(outputs["top_tokens"][index, 0]))
            logits[row].append(outputs["logits"][index])

    step = 0
    while len(tokens[-1]) < steps:
        active = slice(0, batch.row_count)
        if batch.row_count:
            feeds = {"tokens": np.array([[tokens[row][-1]] for row in range(batch.row_count)])}
            record(active, batch.advance(active, feeds, np.ones(batch.row_count, np.int32)))
        new = [row for row in range(batch.row_count, rows) if joins[row] <= step]
        if new:
            added = batch.add_rows(stacked([sources[row] for row in new]) if sources else {}, len(new))
            lengths = np.array([len(prompts[row]) for row in new])
            record(added, batch.advance(added, {"tokens": right_padded([prompts[row] for row in new])}, lengths))
        step += 1
    return np.array([row[:steps] for row in tokens]), np.array([row[:steps] for row in logits])


def _encoded_length(graphs: Graphs, source: Arrays) -> int:
    """Number of encoder positions of an image source; 0 for a text source or none."""
    return 0 if "tokens" in source or not source else graphs.run("encoder", source)["cross.0.key"].shape[2]


def text_source(graphs: Graphs, tokens: Sequence[int]) -> Arrays:
    """Encoder inputs of one text, padded as in the engine."""
    limit = graphs.manifest.limits["source"]
    width = min(padded_length(len(tokens)), limit)
    return {"tokens": right_padded([tokens], width), "lengths": np.array([len(tokens)], np.int32)}


def stacked(sources: Sequence[Arrays]) -> Arrays:
    """Concatenate sources into one batch, padded to the longest."""
    widths = {name: max(source[name].shape[1] for source in sources) for name in sources[0] if name != "lengths"}
    return {
        name: np.concatenate(
            [source[name] if name not in _RAGGED else _pad_right(source[name], widths[name]) for source in sources]
        )
        for name in sources[0]
    }


_RAGGED = ("tokens", "segments")


def _pad_right(tokens: np.ndarray, width: int) -> np.ndarray:
    return np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])))


def right_padded(rows: Sequence[Sequence[int]], width: int | None = None) -> np.ndarray:
    batch = np.zeros((len(rows), width or max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    return batch
