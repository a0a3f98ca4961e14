"""Backends of the encoder benchmark; `python -m loadtest.engine.encoder_workers NAME THREADS` runs one."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from headwaiter.package.manifest import Precision
from loadtest.benchmark_worker import BenchmarkTask, BenchmarkWorker, pick_fastest, run_worker
from loadtest.engine.encoder_inputs import INPUTS, Arrays, batches, collate
from loadtest.random_models import BERT, RANDOM_MODELS, VIT, RandomModel

_WARM_UP = 2  # items
_TUNING_ITEMS = {VIT.name: 16, BERT.name: 64}  # items used to pick the fastest configuration
_BATCH_SIZES = {VIT.name: (1, 4, 8, 16), BERT.name: (2, 4, 8, 16)}
Configuration = TypeVar("Configuration")


class Headwaiter:
    """Submits all items at once; the engine forms the batches."""

    def __init__(self, precision: Precision, threads: int) -> None:
        self._precision, self._threads = precision, threads
        self._model: Any = None

    def prepare(self, task: BenchmarkTask) -> str:
        from headwaiter import open_model

        if self._model is not None:
            self._model.close()
        folder = RANDOM_MODELS[task["model"]].package
        self._model = open_model(folder, precision=self._precision, threads=self._threads)
        self._items = INPUTS[task["model"]](task["items"])
        self._run(self._items[:_WARM_UP])
        return f"{self._threads} threads, dynamic batches"

    def run_task(self, _: BenchmarkTask) -> np.ndarray:
        return self._run(self._items)

    def _run(self, items: Sequence[Arrays]) -> np.ndarray:
        from headwaiter.engine.batcher import ForwardJob

        jobs = [ForwardJob(item) for item in items]
        for job in jobs:
            self._model.engine.submit(job)
        return np.stack([job.future.result().outputs["scores"] for job in jobs])


class ExternalEngine(ABC, Generic[Configuration]):
    """An engine that takes ready batches; the fastest configuration on this machine is used."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._items: list[Arrays] = []
        self._configuration: Configuration

    @abstractmethod
    def open(self, model: RandomModel) -> None: ...

    @abstractmethod
    def configurations(self, sizes: Sequence[int]) -> list[Configuration]: ...

    @abstractmethod
    def describe(self, configuration: Configuration) -> str: ...

    @abstractmethod
    def run(self, items: Sequence[Arrays], configuration: Configuration) -> np.ndarray:
        """Return scores in the order of the items."""

    def prepare(self, task: BenchmarkTask) -> str:
        name = task["model"]
        self.open(RANDOM_MODELS[name])
        self._items = INPUTS[name](task["items"])
        configurations = self.configurations(_BATCH_SIZES[name])
        self.run(self._items[:_WARM_UP], configurations[0])
        tuning_items = self._items[: _TUNING_ITEMS[name]]
        self._configuration = pick_fastest(configurations, lambda configuration: self.run(tuning_items, configuration))
        return self.describe(self._configuration)

    def run_task(self, _: BenchmarkTask) -> np.ndarray:
        return self.run(self._items, self._configuration)


class SequentialEngine(ExternalEngine[int]):
    """Runs one batch after another; configurations are batch sizes."""

    @abstractmethod
    def call(self, feeds: Arrays) -> np.ndarray: ...

    def configurations(self, sizes: Sequence[int]) -> list[int]:
        return list(sizes)

    def describe(self, configuration: int) -> str:
        return f"{self._threads} threads, batches of {configuration}"

    def run(self, items: Sequence[Arrays], configuration: int) -> np.ndarray:
        return _in_order({tuple(batch): self.call(_feeds(items, batch)) for batch in batches(items, configuration)})


class BareSession(SequentialEngine):
    """ONNX Runtime on the same file as the engine."""

    def __init__(self, precision: Precision, threads: int) -> None:
        super().__init__(threads)
        self._precision = precision

    def open(self, model: RandomModel) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.log_severity_level = 3
        file = model.package / "1" / self._precision / "model.onnx"
        self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def call(self, feeds: Arrays) -> np.ndarray:
        scores: np.ndarray = self._session.run(["scores"], feeds)[0]
        return scores


class Torch(SequentialEngine):
    def open(self, model: RandomModel) -> None:
        import torch

        from headwaiter_export.sources.checkpoint import load_checkpoint

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

    def describe(self, configuration: int) -> str:
        return f"eager, sdpa, {super().describe(configuration)}"


class OpenVino(ExternalEngine[tuple[int, int]]):
    """OpenVINO on the same ONNX file, fused operators included; configurations are (streams, batch size)."""

    def open(self, model: RandomModel) -> None:
        self._openvino = importlib.import_module("openvino")  # optional: installed by the extra `bench`
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

    def configurations(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        return [(streams, size) for streams in self._queues for size in sizes]

    def describe(self, configuration: tuple[int, int]) -> str:
        return f"{self._threads} threads in {configuration[0]} streams, batches of {configuration[1]}, same ONNX file"

    def run(self, items: Sequence[Arrays], configuration: tuple[int, int]) -> np.ndarray:
        streams, size = configuration
        scores: dict[tuple[int, ...], np.ndarray] = {}

        def store(request: Any, batch: tuple[int, ...]) -> None:
            scores[batch] = request.get_output_tensor().data.copy()

        queue = self._queues[streams]
        queue.set_callback(store)
        for batch in batches(items, size):
            queue.start_async(_feeds(items, batch), tuple(batch))
        queue.wait_all()
        return _in_order(scores)


def _feeds(items: Sequence[Arrays], batch: Sequence[int]) -> Arrays:
    return collate([items[index] for index in batch])


def _in_order(scores: dict[tuple[int, ...], np.ndarray]) -> np.ndarray:
    indices = np.concatenate([np.array(batch) for batch in scores])
    return np.concatenate(list(scores.values()))[np.argsort(indices)]


_BACKENDS: dict[str, Callable[[int], BenchmarkWorker]] = {
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
    run_worker(_BACKENDS, _PACKAGES)
