"""Runs a package's graphs with nothing but ONNX Runtime, the way that DESIGN.md says they are run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime

from service.package import Package, padded_length

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
        """One call of the decoder; each cache is one buffer, bound as input and as output."""
        binding: Any = self._sessions["decoder"].io_binding()
        takes = {port.name for port in self.manifest.graphs["decoder"].inputs}
        for name in takes & feeds.keys():
            binding.bind_cpu_input(name, np.ascontiguousarray(feeds[name]))
        for state in self.manifest.states:
            cache = caches[state.input]
            assert cache.flags.c_contiguous
            place = ("cpu", 0, cache.dtype.type, cache.shape, cache.ctypes.data)
            binding.bind_input(state.input, *place)
            binding.bind_output(state.output, *place)
        kept = [state.output for state in self.manifest.states]
        answers = [port.name for port in self.manifest.graphs["decoder"].outputs if port.name not in kept]
        for name in answers:
            binding.bind_output(name)
        self._sessions["decoder"].run_with_iobinding(binding)
        return dict(zip(answers, [value.numpy() for value in binding.get_outputs()[len(kept) :]], strict=True))

    def caches(self, rows: int, room: int) -> Arrays:
        sizes: dict[Any, int] = {"rows": rows, "room": room}
        return {
            state.input: np.zeros([sizes.get(axis, axis) for axis in state.shape], state.dtype)
            for state in self.manifest.states
        }


class Table:
    """Rows of one set of cache buffers; newcomers take the next rows while the others are in mid-sentence."""

    def __init__(self, graphs: Graphs, rows: int, room: int, source: int = 0) -> None:
        self.graphs, self.seated = graphs, 0
        self.caches = graphs.caches(rows, room)
        self.positions = np.zeros(rows, np.int32)
        self.source_lengths = np.zeros(rows, np.int32)
        self.cross: Arrays = {}
        for port in graphs.manifest.graphs["encoder"].outputs if "encoder" in graphs.manifest.graphs else ():
            _, heads, length, size = port.shape
            shape = (rows, heads, source if isinstance(length, str) else length, size)
            self.cross[port.name] = np.zeros(shape, port.dtype)

    def seat(self, source: Arrays, rows: int) -> slice:
        """A source for each of the next rows."""
        taken = slice(self.seated, self.seated + rows)
        if source:
            for name, value in self.graphs.run("encoder", source).items():
                self.cross[name][taken, :, : value.shape[2]] = value
            if "lengths" in source:
                self.source_lengths[taken] = source["lengths"]
        self.seated = taken.stop
        return taken

    def advance(self, taken: slice, feeds: Arrays, lengths: np.ndarray) -> Arrays:
        before = self.positions[taken]
        steps = next(iter(feeds.values())).shape[1]
        total = int((before + lengths).max()) if before.any() else steps
        answer = self.graphs.step(
            {
                **feeds,
                **{name: value[taken] for name, value in self.cross.items()},
                "source_lengths": self.source_lengths[taken],
                "lengths": lengths.astype(np.int32),
                "positions": before,
                "total": np.array(total, np.int32),
                "k": np.array([3]),
            },
            {name: value[taken] for name, value in self.caches.items()},
        )
        self.positions[taken] += lengths.astype(np.int32)
        return answer


def greedy(
    graphs: Graphs,
    sources: Sequence[Arrays],
    prompts: Sequence[Sequence[int]],
    steps: int,
    joins: Sequence[int] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows, steps] and logits [rows, steps, vocabulary]. Row i joins before the step `joins[i]`, in order."""
    rows, joins = len(prompts), joins or [0] * len(prompts)
    assert list(joins) == sorted(joins)
    room = min(graphs.manifest.limits["room"], max(map(len, prompts)) + steps + joins[-1])
    longest = max((source["tokens"].shape[1] for source in sources if "tokens" in source), default=0)
    longest = max([longest, *(_crossed(graphs, source) for source in sources)])
    table = Table(graphs, rows, room, longest)
    tokens: list[list[int]] = [[] for _ in range(rows)]
    logits: list[list[np.ndarray]] = [[] for _ in range(rows)]

    def note(taken: slice, answer: Arrays) -> None:
        assert (np.diff(answer["top_scores"], axis=1) <= 0).all()
        for index, row in enumerate(range(taken.start, taken.stop)):
            tokens[row].append(int(answer["top_tokens"][index, 0]))
            logits[row].append(answer["logits"][index])

    tick = 0
    while len(tokens[-1]) < steps:
        going = slice(0, table.seated)
        if table.seated:
            feeds = {"tokens": np.array([[tokens[row][-1]] for row in range(table.seated)])}
            note(going, table.advance(going, feeds, np.ones(table.seated, np.int32)))
        new = [row for row in range(table.seated, rows) if joins[row] <= tick]
        if new:
            taken = table.seat(stacked([sources[row] for row in new]) if sources else {}, len(new))
            lengths = np.array([len(prompts[row]) for row in new])
            note(taken, table.advance(taken, {"tokens": right_padded([prompts[row] for row in new])}, lengths))
        tick += 1
    return np.array([row[:steps] for row in tokens]), np.array([row[:steps] for row in logits])


def _crossed(graphs: Graphs, source: Arrays) -> int:
    return 0 if "tokens" in source or not source else graphs.run("encoder", source)["cross.0.key"].shape[2]


def text_source(graphs: Graphs, tokens: Sequence[int]) -> Arrays:
    """One row, padded as the engine pads."""
    limit = graphs.manifest.limits["source"]
    width = min(padded_length(len(tokens)), limit)
    return {"tokens": right_padded([tokens], width), "lengths": np.array([len(tokens)], np.int32)}


def stacked(sources: Sequence[Arrays]) -> Arrays:
    """Rows in one batch, as wide as the widest."""
    widest = {name: max(source[name].shape[1] for source in sources) for name in sources[0] if name != "lengths"}
    return {
        name: np.concatenate(
            [source[name] if name not in _RAGGED else _widened(source[name], widest[name]) for source in sources]
        )
        for name in sources[0]
    }


_RAGGED = ("tokens", "segments")


def _widened(tokens: np.ndarray, width: int) -> np.ndarray:
    return np.pad(tokens, ((0, 0), (0, width - tokens.shape[1])))


def right_padded(rows: Sequence[Sequence[int]], width: int | None = None) -> np.ndarray:
    batch = np.zeros((len(rows), width or max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        batch[index, : len(row)] = row
    return batch
