"""The graphs of a package, opened on a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from service.engine.binding import Binding
from service.engine.memory import PROVIDERS, Memory, memory_of
from service.package import WEIGHTS, Package, PackageError, Precision

Arrays = dict[str, np.ndarray]
_ON_CUDA: tuple[Precision, ...] = ("fp16",)
_MANY_WEIGHTS = 512 << 20  # bytes: too many to have them in memory twice
_FEW_WEIGHTS = 2 << 20  # bytes: with so few, a second thread of a pass takes more processor time than it saves


class Session:
    """Runs a package's graphs. `run` takes and gives arrays of this process; `binding` takes memory wherever it is, and
    what stays from call to call is best kept in `memory`, which is the device's own."""

    def __init__(
        self, package: Package, *, device: str = "auto", threads: int | None = None, memory: Memory | None = None
    ) -> None:
        self.package = package
        self.device = _choose(device, package)
        self.threads = threads or len(os.sched_getaffinity(0))
        self.threads_of_a_pass = 1 if self._is_small() else self.threads
        self._graphs = self._narrow = self._open(self.threads_of_a_pass)
        if not all(PROVIDERS[self.device] in graph.get_providers() for graph in self._graphs.values()):
            # the runtime has CUDA and the machine has not: the graphs were opened on the CPU
            if device != "auto":
                raise PackageError("CUDA could not be started on this machine; device cpu or auto would run here.")
            self.device = "cpu"
        self.memory = memory or memory_of(self.device)
        self._outputs = {name: [port.name for port in g.outputs] for name, g in package.manifest.graphs.items()}

    def divide(self, lanes: int) -> None:
        """Opens the graphs a second time, with a lane's share of the threads: lanes that are all busy leave each
        other's alone. Many weights are not loaded twice: then narrow is as wide as the rest."""
        if lanes > 1 and self.device == "cpu" and self._weights <= _MANY_WEIGHTS:
            self._narrow = self._open(max(1, self.threads // lanes))

    def run(self, graph: str, feeds: Mapping[str, np.ndarray], *, narrow: bool = False) -> Arrays:
        names = self._outputs[graph]
        return dict(zip(names, self._graph(graph, narrow).run(names, dict(feeds)), strict=True))

    def binding(self, graph: str, *, narrow: bool = False) -> Binding:
        return Binding(self._graph(graph, narrow), apart=self.memory.apart)

    def _graph(self, name: str, narrow: bool) -> Any:
        return (self._narrow if narrow else self._graphs)[name]

    def _is_small(self) -> bool:
        return not self._decodes and self.device == "cpu" and self._weights <= _FEW_WEIGHTS

    @property
    def _decodes(self) -> bool:
        return "decoder" in self.package.manifest.graphs

    @property
    def _weights(self) -> int:
        return self.package.file(WEIGHTS).stat().st_size

    def _open(self, threads: int) -> dict[str, Any]:
        return {name: self._open_file(graph.file, threads) for name, graph in self.package.manifest.graphs.items()}

    def _open_file(self, file: str, threads: int) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A step is many small operators: threads that spin between them take the processor from the other lanes and
        # from the event loop. In a single long pass they are only gaps, and spinning bridges them, but ends with it:
        # between passes the processor belongs to whoever reads the next images.
        setting = ("session.intra_op.allow_spinning", "0") if self._decodes else ("session.force_spinning_stop", "1")
        options.add_session_config_entry(*setting)
        options.log_severity_level = 3
        try:
            return onnxruntime.InferenceSession(
                self.package.file(file),
                options,
                providers=list(dict.fromkeys([PROVIDERS[self.device], PROVIDERS["cpu"]])),
            )
        except Exception as error:  # the runtime raises types of its own, all of them plain exceptions
            raise PackageError(f"{self.package.file(file)} cannot be opened by ONNX Runtime: {error}") from error


def _choose(device: str, package: Package) -> str:
    available = onnxruntime.get_available_providers()
    fits = package.manifest.precision in _ON_CUDA
    if device == "auto":
        return "cuda" if fits and PROVIDERS["cuda"] in available else "cpu"
    if device not in PROVIDERS:
        raise ValueError(f"device {device!r} is not known; there are auto, {', '.join(PROVIDERS)}")
    if device == "cuda" and PROVIDERS["cuda"] not in available:
        raise PackageError(
            "The installed ONNX Runtime has no CUDA: pip install 'headwaiter[gpu]' on a machine with a GPU."
        )
    if device == "cuda" and not fits:
        raise PackageError(
            f"{package.folder} is {package.manifest.precision}; on CUDA {', '.join(_ON_CUDA)} is needed."
        )
    return device
