"""Slot buffers in device memory.

No GPU is needed: the device is the CPU with memory allocated by ONNX Runtime, which is accessed only through bindings
and the copy graph, as on a GPU.
"""

from __future__ import annotations

import ctypes
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwaiter.engine.binding import Binding, Buffer, host_buffer
from headwaiter.engine.buffers import DeviceMemory, HostMemory, Layout, Memory
from headwaiter.engine.decoder import Decoder
from headwaiter.engine.device_copy import WIDTHS, split_into_runs
from headwaiter.engine.sampling import Sampling
from headwaiter.engine.sequence import DecodeJob
from headwaiter.engine.session import Session
from headwaiter.package.manifest import Package, Precision
from service.generate_copy_graphs import OUTPUT, generate
from service.generate_copy_graphs import WIDTHS as GENERATED_WIDTHS
from tests.conftest import Packages
from tests.service.engine.decoder_kit import (
    PARAMETER_SETS,
    Canceller,
    decode_job,
    decoding_parameters,
    random_texts,
    result_or_none,
)

SLOTS, MAX_LENGTH = 5, 61
LAYOUTS = {"keys": Layout((SLOTS, 2, 7, 4), np.float16), "values": Layout((SLOTS, 2, 7, 8), np.float32)}


def test_copy_graphs_are_those_of_the_generator(tmp_path: Path) -> None:
    generate(tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        file.name: file.read_bytes() for file in OUTPUT.iterdir()
    }
    assert sorted(GENERATED_WIDTHS) == sorted(WIDTHS)


@pytest.mark.parametrize(("count", "widths"), [(0, []), (1, [1]), (24, [16, 8]), (64, [64]), (135, [64, 64, 4, 2, 1])])
def test_device_copy_any_count_copies_every_pair(count: int, widths: list[int]) -> None:
    assert [run.stop - run.start for run in split_into_runs(count)] == widths
    sources = [np.random.default_rng(index).random((index % 5 + 1, 3)) for index in range(count)]
    targets = [np.zeros_like(source) for source in sources]
    pairs = [(host_buffer(source), host_buffer(target)) for source, target in zip(sources, targets, strict=True)]
    DeviceMemory("cpu").copy(pairs)
    for source, target in zip(sources, targets, strict=True):
        np.testing.assert_array_equal(target, source)


_slots = st.integers(0, SLOTS - 1)
_writes = st.tuples(st.just("write"), _slots, st.integers(1, 3), st.integers(0, 7))
_copies = st.tuples(st.just("copy"), _slots, _slots, st.integers(0, 7))


@settings(deadline=None, max_examples=50)
@given(st.lists(_writes | _copies, max_size=8))
def test_device_buffers_random_operations_equal_host_buffers(operations: list[tuple[str, int, int, int]]) -> None:
    """A device copies whole slots, so only the requested length is compared; the host then copies the rest as well."""
    host, device = HostMemory().allocate(LAYOUTS), DeviceMemory("cpu").allocate(LAYOUTS)
    rng = np.random.default_rng(0)
    for operation, first, second, length in operations:
        if operation == "copy" and first != second:
            for buffers in (host, device):
                buffers.copy(first, second, length)
            for name in LAYOUTS:
                actual, expected = (buffers.read(SLOTS)[name][second, :, :length] for buffers in (device, host))
                np.testing.assert_array_equal(actual, expected)
            host.copy(first, second)
        elif operation == "write":
            count = min(second, SLOTS - first)
            arrays = {n: rng.random((count, s[1], length, s[3])).astype(t) for n, (s, t) in LAYOUTS.items()}
            for buffers in (host, device):
                buffers.write(first, arrays)
    for name in LAYOUTS:
        np.testing.assert_array_equal(device.read(SLOTS)[name], host.read(SLOTS)[name])


def test_device_buffers_zero_length_are_valid() -> None:
    buffers = DeviceMemory("cpu").allocate({"source": Layout((SLOTS, 2, 0, 4), np.float32)})
    buffers.write(1, {"source": np.empty((1, 2, 0, 4), np.float32)})
    buffers.copy(1, 2)
    assert buffers.read(3)["source"].shape == (3, 2, 0, 4)


class DeviceRuntime:
    """Copies host inputs when they are bound and not again, as ONNX Runtime does for a GPU."""

    def __init__(self) -> None:
        self.inputs: dict[str, bytes] = {}
        self.runs: list[bytes] = []

    def io_binding(self) -> DeviceRuntime:
        return self

    def bind_input(self, name: str, _device: str, _id: int, dtype: Any, shape: tuple[int, ...], pointer: int) -> None:
        self.inputs[name] = ctypes.string_at(pointer, math.prod(shape) * np.dtype(dtype).itemsize)

    def synchronize_inputs(self) -> None: ...

    def run_with_iobinding(self, _binding: object) -> None:
        self.runs.append(self.inputs["tokens"])


def test_binding_changed_host_input_is_copied_before_each_run() -> None:
    runtime, tokens = DeviceRuntime(), np.zeros(3, np.int64)
    binding = Binding(runtime, is_device_memory=True)
    binding.input("tokens", host_buffer(tokens))
    for token in (5, 6):
        tokens[:] = token
        binding.run()
    assert runtime.runs == [np.full(3, 5).tobytes(), np.full(3, 6).tobytes()]


class RecordingMemory(DeviceMemory):
    """Records the shapes copied to the host and counts the copies within the device."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.host_copies: list[tuple[int, ...]] = []
        self.device_copies = 0

    def copy(self, pairs: list[tuple[Buffer, Buffer]]) -> None:
        self.device_copies += not any(isinstance(buffer.owner, np.ndarray) for pair in pairs for buffer in pair)
        self.host_copies += [target.shape for _, target in pairs if isinstance(target.owner, np.ndarray)]
        super().copy(pairs)


def decode(package: Package, jobs: list[DecodeJob], memory: Memory | None = None) -> list[Any]:
    """Return the hypotheses of each job, None if it was cancelled. All jobs are queued before the first step, so that
    the batches are the same in each call."""
    decoder = Decoder(Session(package, threads=1, memory=memory), slots=SLOTS, max_length=MAX_LENGTH)
    for job in jobs:
        decoder.submit(job)
    decoder.start()
    try:
        results = [result_or_none(job) for job in jobs]
        assert decoder.counters.failed == 0
        return [result and result.hypotheses for result in results]
    finally:
        decoder.close(drain=False)


def mixed_jobs(package: Package) -> list[DecodeJob]:
    """More jobs than slots, with all parameter sets and several lengths; some are cancelled while they run."""
    jobs = []
    for index, text in enumerate(random_texts(package, 24)):
        parameter_set = PARAMETER_SETS[index % len(PARAMETER_SETS)]
        params = decoding_parameters(package, **parameter_set, max_new_tokens=4 + 5 * index % 17)
        jobs.append(decode_job(package, text, params))
        jobs[-1].on_token = Canceller(jobs[-1], 2 if index % 12 == 6 else None)
    return jobs


PACKAGES = [
    ("marian", "fp32"),
    ("gpt2", "fp32"),
    pytest.param("marian", "fp16", marks=pytest.mark.slow),
    pytest.param("t5", "fp16", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("kind", "precision"), PACKAGES)
def test_decoder_device_memory_equals_host_memory(kind: str, precision: Precision, packages: Packages) -> None:
    package, memory = packages(kind, precision).package, RecordingMemory()
    actual = decode(package, mixed_jobs(package), memory)
    assert actual == decode(package, mixed_jobs(package))
    assert actual.count(None) == 2, "cancelled"
    assert memory.device_copies > 10, "beam reordering and eviction copy slots"


@pytest.mark.parametrize(
    ("options", "is_copied"),
    [
        ({}, False),
        ({"sampling": Sampling(top_k=5)}, False),
        ({"sampling": Sampling()}, True),
        ({"num_beams": 2}, False),
    ],
)
def test_decoder_logits_are_copied_to_host_only_if_needed(
    options: dict[str, Any], is_copied: bool, packages: Packages
) -> None:
    package, memory = packages("gpt2", "fp32").package, RecordingMemory()
    params = decoding_parameters(package, **options)
    decode(package, [decode_job(package, text, params) for text in random_texts(package, 3)], memory)
    assert bool(memory.host_copies) is is_copied
