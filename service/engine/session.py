"""The graphs of a package, opened on a device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from service.package import Package, PackageError, Precision

Arrays = dict[str, np.ndarray]
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_ON_CUDA: tuple[Precision, ...] = ("fp16",)


class Session:
    """Runs a package's graphs. Everything that is fed or fetched lies in this process's memory."""

    def __init__(self, package: Package, *, device: str = "auto", threads: int | None = None) -> None:
        self.package = package
        self.device = _choose(device, package)
        self.threads = threads or len(os.sched_getaffinity(0))
        self._graphs = {name: self._open(graph.file) for name, graph in package.manifest.graphs.items()}
        self._outputs = {name: [port.name for port in g.outputs] for name, g in package.manifest.graphs.items()}

    def run(self, graph: str, feeds: Mapping[str, np.ndarray]) -> Arrays:
        names = self._outputs[graph]
        return dict(zip(names, self._graphs[graph].run(names, dict(feeds)), strict=True))

    def binding(self, graph: str) -> Binding:
        return Binding(self._graphs[graph])

    def _open(self, file: str) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        if "decoder" in self.package.manifest.graphs:
            # A step is many small operators: threads that spin between them take the processor from the other lanes
            # and from the event loop. In a single long pass they are only gaps, and spinning bridges them.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            return onnxruntime.InferenceSession(
                self.package.file(file),
                options,
                providers=list(dict.fromkeys([_PROVIDERS[self.device], _PROVIDERS["cpu"]])),
            )
        except Exception as error:  # the runtime raises types of its own, all of them plain exceptions
            raise PackageError(f"{self.package.file(file)} cannot be opened by ONNX Runtime: {error}") from error


class Binding:
    """Memory bound to a graph's inputs and outputs, for calls that only change what is in it."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._kept: list[np.ndarray] = []

    def input(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
        self._kept.append(array)
        self._binding.bind_input(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

    def output(self, name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
        self._kept.append(array)
        self._binding.bind_output(name, "cpu", 0, array.dtype.type, shape, array.ctypes.data)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)


def _choose(device: str, package: Package) -> str:
    available = onnxruntime.get_available_providers()
    fits = package.manifest.precision in _ON_CUDA
    if device == "auto":
        return "cuda" if fits and _PROVIDERS["cuda"] in available else "cpu"
    if device not in _PROVIDERS:
        raise ValueError(f"device {device!r} is not known; there are auto, {', '.join(_PROVIDERS)}")
    if device == "cuda" and _PROVIDERS["cuda"] not in available:
        raise PackageError(
            "The installed ONNX Runtime has no CUDA: pip install 'headwaiter[gpu]' on a machine with a GPU."
        )
    if device == "cuda" and not fits:
        raise PackageError(
            f"{package.folder} is {package.manifest.precision}; on CUDA {', '.join(_ON_CUDA)} is needed."
        )
    return device
