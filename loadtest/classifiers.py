"""Classifiers that compete: the same arrays in, scores out. `python -m loadtest.classifiers NAME THREADS` is one."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from loadtest.entrant import Entrant, Task, compete, fastest
from loadtest.inputs import INPUTS, Arrays, batches, together
from loadtest.untrained import BERT, UNTRAINED, VIT, Untrained
from service.package import Precision

_WARM_UP = 2  # items
_TRIED = {VIT.name: 16, BERT.name: 64}  # items, for finding the best way
_SIZES = {VIT.name: (1, 4, 8, 16), BERT.name: (2, 4, 8, 16)}  # of batches
Way = TypeVar("Way")


class Headwaiter:
    """Everything is asked for at once, in no order; batching is the engine's."""

    def __init__(self, precision: Precision, threads: int) -> None:
        self._precision, self._threads = precision, threads
        self._model: Any = None

    def prepare(self, task: Task) -> str:
        from service import open_model

        if self._model is not None:
            self._model.close()
        folder = UNTRAINED[task["model"]].package
        self._model = open_model(folder, precision=self._precision, threads=self._threads)
        self._items = INPUTS[task["model"]](task["items"])
        self._run(self._items[:_WARM_UP])
        return f"{self._threads} threads, batches as the engine makes them"

    def play(self, _: Task) -> np.ndarray:
        return self._run(self._items)

    def _run(self, items: Sequence[Arrays]) -> np.ndarray:
        from service.engine.batcher import PassJob

        jobs = [PassJob(item) for item in items]
        for job in jobs:
            self._model.engine.submit(job)
        return np.stack([job.future.result().outputs["scores"] for job in jobs])


class Peer(ABC, Generic[Way]):
    """Batches are made by its user, in the size that is fastest here."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._items: list[Arrays] = []
        self._way: Way

    @abstractmethod
    def open(self, model: Untrained) -> None: ...

    @abstractmethod
    def ways(self, sizes: Sequence[int]) -> list[Way]: ...

    @abstractmethod
    def describe(self, way: Way) -> str: ...

    @abstractmethod
    def run(self, items: Sequence[Arrays], way: Way) -> np.ndarray:
        """Scores in the order of the items."""

    def prepare(self, task: Task) -> str:
        name = task["model"]
        self.open(UNTRAINED[name])
        self._items = INPUTS[name](task["items"])
        ways = self.ways(_SIZES[name])
        self.run(self._items[:_WARM_UP], ways[0])
        tried = self._items[: _TRIED[name]]
        self._way = fastest(ways, lambda way: self.run(tried, way))
        return self.describe(self._way)

    def play(self, _: Task) -> np.ndarray:
        return self.run(self._items, self._way)


class OneAfterAnother(Peer[int]):
    """Ways are batch sizes."""

    @abstractmethod
    def call(self, feeds: Arrays) -> np.ndarray: ...

    def ways(self, sizes: Sequence[int]) -> list[int]:
        return list(sizes)

    def describe(self, way: int) -> str:
        return f"{self._threads} threads, batches of {way}"

    def run(self, items: Sequence[Arrays], way: int) -> np.ndarray:
        return _in_order({tuple(part): self.call(_feeds(items, part)) for part in batches(items, way)})


class BareSession(OneAfterAnother):
    """ONNX Runtime on the very file that the engine runs."""

    def __init__(self, precision: Precision, threads: int) -> None:
        super().__init__(threads)
        self._precision = precision

    def open(self, model: Untrained) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        file = model.package / "1" / self._precision / "model.onnx"
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def call(self, feeds: Arrays) -> np.ndarray:
        scores: np.ndarray = self._session.run(["scores"], feeds)[0]
        return scores


class Torch(OneAfterAnother):
    def open(self, model: Untrained) -> None:
        import torch

        from export.checkpoint import load_checkpoint

        torch.set_num_threads(self._threads)
        self._family: Any = load_checkpoint(model.checkpoint)
        self._family.model.set_attn_implementation("sdpa")

    def call(self, feeds: Arrays) -> np.ndarray:
        import torch

        inputs = {name: torch.from_numpy(value) for name, value in feeds.items()}
        mask = None
        if "lengths" in inputs:
            mask = torch.arange(inputs["tokens"].shape[1])[None] < inputs["lengths"][:, None]
        with torch.inference_mode():
            scores: np.ndarray = self._family.call(inputs, mask)["scores"].numpy()
        return scores

    def describe(self, way: int) -> str:
        return f"eager, sdpa, {super().describe(way)}"


class OpenVino(Peer[tuple[int, int]]):
    """Reads our ONNX file, fused operators and all. Ways are streams and batch sizes."""

    def open(self, model: Untrained) -> None:
        self._openvino = importlib.import_module("openvino")  # from the extra `bench`, which linting does without
        core = self._openvino.Core()
        graph = core.read_model(model.package / "1" / "fp32" / "model.onnx")
        self._queues = {}
        for streams in {1, self._threads}:
            settings = {
                "INFERENCE_NUM_THREADS": self._threads,
                "NUM_STREAMS": streams,
                "INFERENCE_PRECISION_HINT": "f32",
            }
            self._queues[streams] = self._openvino.AsyncInferQueue(core.compile_model(graph, "CPU", settings))

    def ways(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        return [(streams, size) for streams in self._queues for size in sizes]

    def describe(self, way: tuple[int, int]) -> str:
        return f"{self._threads} threads in {way[0]} streams, batches of {way[1]}, our ONNX file"

    def run(self, items: Sequence[Arrays], way: tuple[int, int]) -> np.ndarray:
        streams, size = way
        found: dict[tuple[int, ...], np.ndarray] = {}

        def keep(request: Any, part: tuple[int, ...]) -> None:
            found[part] = request.get_output_tensor().data.copy()

        queue = self._queues[streams]
        queue.set_callback(keep)
        for part in batches(items, size):
            queue.start_async(_feeds(items, part), tuple(part))
        queue.wait_all()
        return _in_order(found)


def _feeds(items: Sequence[Arrays], part: Sequence[int]) -> Arrays:
    return together([items[index] for index in part])


def _in_order(found: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    places = np.concatenate([np.array(part) for part in found])
    return np.concatenate(list(found.values()))[np.argsort(places)]


_CLASSIFIERS: dict[str, Callable[[int], Entrant]] = {
    "headwaiter fp32": lambda threads: Headwaiter("fp32", threads),
    "headwaiter int8": lambda threads: Headwaiter("int8", threads),
    "onnxruntime fp32": lambda threads: BareSession("fp32", threads),
    "onnxruntime int8": lambda threads: BareSession("int8", threads),
    "openvino fp32": OpenVino,
    "torch fp32": Torch,
}
_PACKAGES = {
    "headwaiter": ("headwaiter", "onnxruntime"),
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "torch": ("torch", "transformers"),
}

if __name__ == "__main__":
    compete(_CLASSIFIERS, _PACKAGES)
