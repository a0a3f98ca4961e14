"""Rows in the memory of a device. No GPU is needed: the device is the CPU, its memory the runtime's and not numpy's.
Only bindings and the graph that copies reach it, as it would be elsewhere."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from service.engine.binding import Binding, Place, on_host
from service.engine.copying import copying_graph
from service.engine.decoder import Decoder
from service.engine.memory import DeviceMemory, HostMemory, Layout, Memory
from service.engine.sampling import Sampling
from service.engine.sequence import DecodeJob
from service.engine.session import Session
from service.package import Package, Precision
from tests.conftest import Packages
from tests.service.test_decoder import WAYS, Canceller, answer_of, job, plain, sources

ROWS, ROOM = 5, 61
LAYOUTS = {"keys": Layout((ROWS, 2, 7, 4), np.float16), "values": Layout((ROWS, 2, 7, 8), np.float32)}


@pytest.mark.parametrize("count", [1, 2, 150])
def test_the_graph_that_copies_is_what_onnx_would_write(count: int) -> None:
    names = range(count)
    expected = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", [f"from.{n}"], [f"to.{n}"]) for n in names],
            "copies",
            [helper.make_tensor_value_info(f"from.{n}", TensorProto.UINT8, [f"size.{n}"]) for n in names],
            [helper.make_tensor_value_info(f"to.{n}", TensorProto.UINT8, [f"size.{n}"]) for n in names],
        ),
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 20)],
    )
    written = onnx.load_from_string(copying_graph(count))
    onnx.checker.check_model(written, full_check=True)
    for node in expected.graph.node:
        node.ClearField("name")
    assert [*written.graph.node] == [*expected.graph.node]
    assert [*written.graph.input, *written.graph.output] == [*expected.graph.input, *expected.graph.output]
    assert (written.ir_version, [each.version for each in written.opset_import]) == (10, [20])


_row = st.integers(0, ROWS - 1)
_writes = st.tuples(st.just("write"), _row, st.integers(1, 3), st.integers(0, 7))
_copies = st.tuples(st.just("copy"), _row, _row, st.integers(0, 7))


@settings(deadline=None, max_examples=50)
@given(st.lists(_writes | _copies, max_size=8))
def test_what_is_written_and_copied_is_read_alike(steps: list[tuple[str, int, int, int]]) -> None:
    """A device copies a row whole, so a copy is compared as far as it was asked for, then evened out."""
    host, device = HostMemory().rows(LAYOUTS), DeviceMemory("cpu").rows(LAYOUTS)
    rng = np.random.default_rng(0)
    for what, first, second, length in steps:
        if what == "copy" and first != second:
            for rows in (host, device):
                rows.copy(first, second, length)
            for name in LAYOUTS:
                found, expected = (rows.read(ROWS)[name][second, :, :length] for rows in (device, host))
                np.testing.assert_array_equal(found, expected)
            host.copy(first, second)
        elif what == "write":
            count = min(second, ROWS - first)
            parts = {n: rng.random((count, s[1], length, s[3])).astype(t) for n, (s, t) in LAYOUTS.items()}
            for rows in (host, device):
                rows.write(first, parts)
    for name in LAYOUTS:
        np.testing.assert_array_equal(device.read(ROWS)[name], host.read(ROWS)[name])


def test_rows_without_width_hold_nothing_and_do_no_harm() -> None:
    rows = DeviceMemory("cpu").rows({"source": Layout((ROWS, 2, 0, 4), np.float32)})
    rows.write(1, {"source": np.empty((1, 2, 0, 4), np.float32)})
    rows.copy(1, 2)
    assert rows.read(3)["source"].shape == (3, 2, 0, 4)


class Elsewhere:
    """As the runtime does with a GPU: what is on the host is copied when it is bound, and only then."""

    def __init__(self) -> None:
        self.copied: dict[str, bytes] = {}
        self.seen: list[bytes] = []

    def io_binding(self) -> Elsewhere:
        return self

    def bind_input(self, name: str, _device: str, _id: int, dtype: Any, shape: tuple[int, ...], at: int) -> None:
        self.copied[name] = ctypes.string_at(at, math.prod(shape) * np.dtype(dtype).itemsize)

    def synchronize_inputs(self) -> None: ...

    def run_with_iobinding(self, _binding: object) -> None:
        self.seen.append(self.copied["tokens"])


def test_what_changes_on_the_host_is_sent_again_for_each_run() -> None:
    runtime, tokens = Elsewhere(), np.zeros(3, np.int64)
    binding = Binding(runtime, apart=True)
    binding.input("tokens", on_host(tokens))
    for token in (5, 6):
        tokens[:] = token
        binding.run()
    assert runtime.seen == [np.full(3, 5).tobytes(), np.full(3, 6).tobytes()]


class Watched(DeviceMemory):
    """Tells what went to the host, and how often rows were copied without it."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.fetched: list[tuple[int, ...]] = []
        self.copied = 0

    def copy(self, pairs: list[tuple[Place, Place]]) -> None:
        self.copied += not any(isinstance(place.owner, np.ndarray) for pair in pairs for place in pair)
        self.fetched += [target.shape for _, target in pairs if isinstance(target.owner, np.ndarray)]
        super().copy(pairs)


def answers(package: Package, jobs: list[DecodeJob], memory: Memory | None = None) -> list[Any]:
    """All are in line before the first step: who is in a batch with whom is the same each time."""
    decoder = Decoder(Session(package, threads=1, memory=memory), rows=ROWS, room=ROOM)
    for each in jobs:
        decoder.submit(each)
    decoder.start()
    try:
        ended = [answer_of(each) for each in jobs]
        assert decoder.meters.failed == 0
        return [each and each.hypotheses for each in ended]
    finally:
        decoder.close(drain=False)


def requests(package: Package) -> list[DecodeJob]:
    """More than there are rows: greedy, beams and draws of several lengths, some of them cancelled on the way."""
    jobs = []
    for index, tokens in enumerate(sources(package, 24)):
        choosing = plain(package, **WAYS[index % len(WAYS)], max_new_tokens=4 + 5 * index % 17)
        jobs.append(job(package, tokens, choosing))
        jobs[-1].listener = Canceller(jobs[-1], 2 if index % 12 == 6 else None)
    return jobs


PACKAGES: list[tuple[str, Precision]] = [("marian", "fp32"), ("marian", "fp16"), ("gpt2", "fp32"), ("t5", "fp16")]


@pytest.mark.parametrize(("kind", "precision"), PACKAGES)
def test_answers_are_those_from_the_memory_of_the_host(kind: str, precision: Precision, packages: Packages) -> None:
    package, watched = packages(kind, precision).package, Watched()
    found = answers(package, requests(package), watched)
    assert found == answers(package, requests(package))
    assert found.count(None) == 2, "cancelled"
    assert watched.copied > 10, "beams and rows that leave copy rows"


@pytest.mark.parametrize(
    ("how", "is_fetched"),
    [({}, False), ({"sampling": Sampling(top_k=5)}, False), ({"sampling": Sampling()}, True), ({"beams": 2}, False)],
)
def test_all_scores_are_fetched_only_where_they_are_looked_at(
    how: dict[str, Any], is_fetched: bool, packages: Packages
) -> None:
    package, watched = packages("gpt2", "fp32").package, Watched()
    answers(package, [job(package, tokens, plain(package, **how)) for tokens in sources(package, 3)], watched)
    assert bool(watched.fetched) is is_fetched
