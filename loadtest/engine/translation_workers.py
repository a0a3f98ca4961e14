"""Backends of the translation benchmark; `python -m loadtest.engine.translation_workers NAME THREADS` runs one."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headwaiter.package.manifest import Precision
from loadtest.benchmark_worker import BenchmarkTask, BenchmarkWorker, pick_fastest, run_worker

MODEL = "opus-mt-zh-en"
_WARM_UP = 4  # sentences
_MIN_SEQUENCES = 64


class Headwaiter:
    """Opens the model with one slot per concurrent sentence and beam."""

    def __init__(self, precision: Precision, threads: int) -> None:
        self._precision, self._threads = precision, threads
        self._model: Any = None
        self._slots = 0

    def prepare(self, task: BenchmarkTask) -> str:
        self._open(max(_MIN_SEQUENCES, task["concurrency"] * task["beams"]))
        self.run_task(task | {"texts": task["texts"][:_WARM_UP]})
        return f"{self._threads} threads, {self._slots} slots"

    def run_task(self, task: BenchmarkTask) -> list[str]:
        texts, concurrency = task["texts"], task["concurrency"]
        full = concurrency * task["beams"] >= self._slots
        chunk = len(texts) if full else concurrency  # the engine queues what exceeds its slots
        parts = (texts[i : i + chunk] for i in range(0, len(texts), chunk))
        decoding = {"num_beams": task["beams"], "early_stopping": True}  # as in CTranslate2
        return [translation.text for part in parts for translation in self._model.translate(part, **decoding)]

    def _open(self, slots: int) -> None:
        from headwaiter import open_model

        if slots == self._slots:
            return
        if self._model is not None:
            self._model.close()
        self._model = open_model(
            Path("models") / MODEL, precision=self._precision, threads=self._threads, max_sequences=slots
        )
        self._slots = slots


class CTranslate2:
    """Keeps at most `concurrency` sentences in flight, in one batch on all threads or split among workers."""

    def __init__(self, compute: str, threads: int) -> None:
        from sentencepiece import SentencePieceProcessor

        self._published = PublishedWeights()
        pieces = next(self._published.folder.rglob("sentencepiece.model"))
        self._pieces = SentencePieceProcessor(model_file=str(pieces))
        self._compute, self._threads = compute, threads
        self._translators: dict[int, Any] = {}  # by the number of workers
        self._workers = 1

    def prepare(self, task: BenchmarkTask) -> str:
        concurrency = task["concurrency"]
        configurations = [1, self._threads] if concurrency >= self._threads > 1 else [1]
        tuning_task = task | {"texts": task["texts"][:concurrency]}
        self._translate(task | {"texts": task["texts"][:_WARM_UP]}, 1)
        self._workers = pick_fastest(configurations, lambda workers: self._translate(tuning_task, workers))
        threads, batch = self._threads // self._workers, concurrency // self._workers
        return f"{self._workers} × {threads} threads, batches of {batch}"

    def run_task(self, task: BenchmarkTask) -> list[str]:
        return self._translate(task, self._workers)

    def _translate(self, task: BenchmarkTask, workers: int) -> list[str]:
        translator, concurrency = self._translator(workers), task["concurrency"]
        tokens = [self._pieces.encode(text, out_type=str) for text in task["texts"]]
        chunk = len(tokens) if concurrency >= 64 else concurrency
        options = {"beam_size": task["beams"], "max_batch_size": concurrency // workers}
        parts = (tokens[begin : begin + chunk] for begin in range(0, len(tokens), chunk))
        results = [result for part in parts for result in translator.translate_batch(part, **options)]
        return ["".join(result.hypotheses[0]).replace("▁", " ").strip() for result in results]

    def _translator(self, workers: int) -> Any:
        import ctranslate2

        if workers not in self._translators:
            model = next(self._published.folder.rglob("model.bin")).parent
            self._translators[workers] = ctranslate2.Translator(
                str(model),
                compute_type=self._compute,
                inter_threads=workers,
                intra_threads=self._threads // workers,
            )
        return self._translators[workers]


class Transformers:
    def __init__(self, threads: int) -> None:
        import torch

        from headwaiter.package.manifest import open_package
        from headwaiter.tasks.text import Tokenizer
        from headwaiter_export.sources.argos import load_argos

        torch.set_num_threads(threads)
        package = open_package(Path("models") / MODEL)
        assert package.manifest.preprocessing.text is not None
        self._tokenizer = Tokenizer.open(package.folder, package.manifest.preprocessing.text)
        published = PublishedWeights()
        self._model = load_argos(published.folder).family.model
        self._model.set_attn_implementation("sdpa")
        self._threads = threads

    def prepare(self, task: BenchmarkTask) -> str:
        self.run_task(task | {"texts": task["texts"][:_WARM_UP]})
        return f"{self._threads} threads, sdpa, batches by length"

    def run_task(self, task: BenchmarkTask) -> list[str]:
        texts, concurrency = task["texts"], task["concurrency"]
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        translations: dict[int, str] = {}
        for begin in range(0, len(order), concurrency):
            batch = order[begin : begin + concurrency]
            translations.update(zip(batch, self._batch([texts[i] for i in batch], task["beams"]), strict=True))
        return [translations[index] for index in range(len(texts))]

    def _batch(self, texts: list[str], beams: int) -> list[str]:
        import torch

        ids = [self._tokenizer.encode(text) for text in texts]
        longest = max(map(len, ids))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 200}
        if beams > 1:
            options["early_stopping"] = True
        with torch.inference_mode():
            out = self._model.generate(tokens, attention_mask=mask, **options)
        return [self._tokenizer.decode(row) for row in out[:, 1:].tolist()]


class PublishedWeights:
    """The published weights, unpacked into a temporary directory that lives as long as this object."""

    def __init__(self) -> None:
        from headwaiter_export.menu import fetch, menu

        self._scratch = tempfile.TemporaryDirectory()
        with zipfile.ZipFile(fetch(menu()[MODEL])) as archive:
            archive.extractall(self._scratch.name)  # safe: the archive is pinned by its SHA-256
        self.folder = next(Path(self._scratch.name).iterdir())


_BACKENDS: dict[str, Callable[[int], BenchmarkWorker]] = {
    "headwaiter fp32": lambda threads: Headwaiter("fp32", threads),
    "headwaiter int8": lambda threads: Headwaiter("int8", threads),
    "ctranslate2 fp32": lambda threads: CTranslate2("float32", threads),
    "ctranslate2 int8": lambda threads: CTranslate2("int8", threads),
    "transformers fp32": lambda threads: Transformers(threads),
}
_PACKAGES = {
    "headwaiter": ("headwaiter", "onnxruntime"),
    "ctranslate2": ("ctranslate2", "sentencepiece"),
    "transformers": ("transformers", "torch"),
}

if __name__ == "__main__":
    run_worker(_BACKENDS, _PACKAGES)
