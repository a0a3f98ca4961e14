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
_FEW_WEIGHTS = 2 << 20  # bytes: their products are so short that waking a second thread costs what it saves


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
        self._graphs = {name: self._open(graph.file) for name, graph in package.manifest.graphs.items()}
        if not all(PROVIDERS[self.device] in graph.get_providers() for graph in self._graphs.values()):
            # the runtime has CUDA and the machine has not: the graphs were opened on the CPU
            if device != "auto":
                raise PackageError("CUDA could not be started on this machine; device cpu or auto would run here.")
            self.device = "cpu"
        self.memory = memory or memory_of(self.device)
        self._outputs = {name: [port.name for port in g.outputs] for name, g in package.manifest.graphs.items()}

    def run(self, graph: str, feeds: Mapping[str, np.ndarray]) -> Arrays:
        names = self._outputs[graph]
        return dict(zip(names, self._graphs[graph].run(names, dict(feeds)), strict=True))

    def binding(self, graph: str) -> Binding:
        return Binding(self._graphs[graph], apart=self.memory.apart)

    def _is_small(self) -> bool:
        return not self._decodes and self.device == "cpu" and self.package.file(WEIGHTS).stat().st_size <= _FEW_WEIGHTS

    @property
    def _decodes(self) -> bool:
        return "decoder" in self.package.manifest.graphs

    def _open(self, file: str) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads_of_a_pass
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
