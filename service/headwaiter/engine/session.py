"""ONNX Runtime sessions for the graphs of a model package, on one device."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from headwaiter.engine.binding import Binding
from headwaiter.engine.buffers import PROVIDERS, Memory, open_memory
from headwaiter.engine.cpus import available_cpus
from headwaiter.package.manifest import WEIGHTS, Package, PackageError, Precision
from headwaiter.package.usage import mark_in_use

Arrays = dict[str, np.ndarray]
_CUDA_PRECISIONS: tuple[Precision, ...] = ("fp16",)
_MAX_DUPLICATED_WEIGHT_BYTES = 512 << 20  # larger weights are not loaded twice
_SMALL_MODEL_WEIGHT_BYTES = 2 << 20  # below this, a second thread per run costs more CPU time than it saves


class Session:
    """Runs a package's graphs.

    `run` takes and returns numpy arrays. `binding` takes buffers on the host or the device; buffers that persist
    between runs should be allocated in `memory`, which is on the device.
    """

    def __init__(
        self, package: Package, *, device: str = "auto", threads: int | None = None, memory: Memory | None = None
    ) -> None:
        self.package = package
        self._usage_mark = mark_in_use(package)  # held as long as the session
        self.device = _select_device(device, package)
        self.threads = threads or available_cpus()
        self.threads_per_run = 1 if self._is_small_model() else self.threads
        self._last_run_ends: dict[int | None, float] = {}  # by thread
        self._graphs = self._reduced_graphs = self._open(self.threads_per_run)
        if not all(PROVIDERS[self.device] in graph.get_providers() for graph in self._graphs.values()):
            # ONNX Runtime has the CUDA provider but found no usable GPU, and fell back to the CPU.
            if device != "auto":
                raise PackageError("CUDA could not be initialised on this machine; use device `cpu` or `auto`.")
            self.device = "cpu"
        self.memory = memory or open_memory(self.device)
        self._outputs = {name: [port.name for port in graph.outputs] for name, graph in package.manifest.graphs.items()}

    def open_reduced_sessions(self, workers: int) -> None:
        """Open a second set of sessions with fewer intra-op threads, used when most workers are busy.

        Skipped for weights over 512 MiB; runs with `reduced_threads` then use all threads.
        """
        if workers > 1 and self.device == "cpu" and self._weight_bytes <= _MAX_DUPLICATED_WEIGHT_BYTES:
            self._reduced_graphs = self._open(max(1, self.threads // workers))

    def run(self, graph: str, feeds: Mapping[str, np.ndarray], *, reduced_threads: bool = False) -> Arrays:
        names = self._outputs[graph]
        try:
            outputs = self._graph(graph, reduced_threads).run(names, dict(feeds))
        finally:
            self._record_run()
        return dict(zip(names, outputs, strict=True))

    def binding(self, graph: str, *, reduced_threads: bool = False) -> Binding:
        return Binding(
            self._graph(graph, reduced_threads),
            is_device_memory=self.memory.is_device_memory,
            on_run=self._record_run,
        )

    def last_run_end(self, thread: int | None) -> float:
        """The `time.monotonic()` at which the last graph run of a thread ended; 0 if none has."""
        return self._last_run_ends.get(thread, 0.0)

    def _record_run(self) -> None:
        self._last_run_ends[threading.get_ident()] = time.monotonic()

    def _graph(self, name: str, reduced_threads: bool) -> Any:
        return (self._reduced_graphs if reduced_threads else self._graphs)[name]

    def _is_small_model(self) -> bool:
        return not self._is_decoder and self.device == "cpu" and self._weight_bytes <= _SMALL_MODEL_WEIGHT_BYTES

    @property
    def _is_decoder(self) -> bool:
        return "decoder" in self.package.manifest.graphs

    @property
    def _takes_images_of_any_size(self) -> bool:
        ports = (port for graph in self.package.manifest.graphs.values() for port in graph.inputs)
        return any(port.name == "pixels" and any(isinstance(axis, str) for axis in port.shape[2:]) for port in ports)

    @property
    def _weight_bytes(self) -> int:
        return self.package.file(WEIGHTS).stat().st_size

    def _open(self, threads: int) -> dict[str, Any]:
        return {name: self._open_file(graph.file, threads) for name, graph in self.package.manifest.graphs.items()}

    def _open_file(self, file: str, threads: int) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A decoding step is many small operators: threads that spin between them take CPU time from the other workers
        # and from the event loop. In a single long forward pass spinning bridges short gaps, but stops at its end to
        # leave the CPU to preprocessing.
        setting = ("session.intra_op.allow_spinning", "0") if self._is_decoder else ("session.force_spinning_stop", "1")
        options.add_session_config_entry(*setting)
        # The arena grows with the number of image sizes; without it memory stays flat, at the same speed. Over
        # lengths of texts it stays flat with the arena (`python -m loadtest.memory`).
        options.enable_cpu_mem_arena = not self._takes_images_of_any_size
        options.log_severity_level = 3
        try:
            return onnxruntime.InferenceSession(
                self.package.file(file),
                options,
                providers=list(dict.fromkeys([PROVIDERS[self.device], PROVIDERS["cpu"]])),
            )
        except Exception as error:  # the exception types of ONNX Runtime have no common base class
            raise PackageError(f"{self.package.file(file)} cannot be loaded by ONNX Runtime: {error}") from error


def _select_device(device: str, package: Package) -> str:
    available = onnxruntime.get_available_providers()
    supports_cuda = package.manifest.precision in _CUDA_PRECISIONS
    if device == "auto":
        return "cuda" if supports_cuda and PROVIDERS["cuda"] in available else "cpu"
    if device not in PROVIDERS:
        raise ValueError(f"device is {device!r}; it must be one of auto, {', '.join(PROVIDERS)}")
    if device == "cuda" and PROVIDERS["cuda"] not in available:
        raise PackageError(
            "The installed ONNX Runtime has no CUDA provider; on a machine with a GPU, pip install 'headwaiter[gpu]'."
        )
    if device == "cuda" and not supports_cuda:
        raise PackageError(
            f"{package.folder} has precision {package.manifest.precision}; CUDA requires {', '.join(_CUDA_PRECISIONS)}."
        )
    return device
