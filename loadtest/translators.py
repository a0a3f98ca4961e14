"""Translators that compete: `python -m loadtest.translators NAME THREADS` is one of them."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.entrant import Entrant, Task, compete, fastest
from service.package import Precision

MODEL = "opus-mt-zh-en"
_WARM_UP = 4  # sentences
_FEWEST_ROWS = 64


class Headwaiter:
    """A row for each sentence that may be on its way, or for each of its beams."""

    def __init__(self, precision: Precision, threads: int) -> None:
        self._precision, self._threads = precision, threads
        self._model: Any = None
        self._rows = 0

    def prepare(self, task: Task) -> str:
        self._open(max(_FEWEST_ROWS, task["at_once"] * task["beams"]))
        self.play(task | {"texts": task["texts"][:_WARM_UP]})
        return f"{self._threads} threads, {self._rows} rows"

    def play(self, task: Task) -> list[str]:
        texts, at_once = task["texts"], task["at_once"]
        full = at_once * task["beams"] >= self._rows
        chunk = len(texts) if full else at_once  # beyond its rows the engine makes them wait itself
        parts = (texts[i : i + chunk] for i in range(0, len(texts), chunk))
        how = {"beams": task["beams"], "early_stopping": True}  # CTranslate2 stops like this
        return [words.text for part in parts for words in self._model.translate(part, **how)]

    def _open(self, rows: int) -> None:
        from service import open_model

        if rows == self._rows:
            return
        if self._model is not None:
            self._model.close()
        self._model = open_model(Path("models") / MODEL, precision=self._precision, threads=self._threads, rows=rows)
        self._rows = rows


class CTranslate2:
    """At most `at_once` sentences are on their way: in one batch with all threads, or shared among workers of one."""

    def __init__(self, compute: str, threads: int) -> None:
        from sentencepiece import SentencePieceProcessor

        self._original = Original()
        pieces = next(self._original.folder.rglob("sentencepiece.model"))
        self._pieces = SentencePieceProcessor(model_file=str(pieces))
        self._compute, self._threads = compute, threads
        self._translators: dict[int, Any] = {}  # by the number of workers
        self._workers = 1

    def prepare(self, task: Task) -> str:
        at_once = task["at_once"]
        ways = [1, self._threads] if at_once >= self._threads > 1 else [1]
        tried = task | {"texts": task["texts"][:at_once]}
        self._translate(task | {"texts": task["texts"][:_WARM_UP]}, 1)
        self._workers = fastest(ways, lambda workers: self._translate(tried, workers))
        threads, batch = self._threads // self._workers, at_once // self._workers
        return f"{self._workers} × {threads} threads, batches of {batch}"

    def play(self, task: Task) -> list[str]:
        return self._translate(task, self._workers)

    def _translate(self, task: Task, workers: int) -> list[str]:
        translator, at_once = self._opened(workers), task["at_once"]
        tokens = [self._pieces.encode(text, out_type=str) for text in task["texts"]]
        chunk = len(tokens) if at_once >= 64 else at_once
        how = {"beam_size": task["beams"], "max_batch_size": at_once // workers}
        parts = (tokens[begin : begin + chunk] for begin in range(0, len(tokens), chunk))
        found = [one for part in parts for one in translator.translate_batch(part, **how)]
        return ["".join(one.hypotheses[0]).replace("▁", " ").strip() for one in found]

    def _opened(self, workers: int) -> Any:
        import ctranslate2

        if workers not in self._translators:
            model = next(self._original.folder.rglob("model.bin")).parent
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

        from export.argos import load_argos
        from service.package import open_package
        from service.tasks.text import Tokenizer

        torch.set_num_threads(threads)
        package = open_package(Path("models") / MODEL)
        assert package.manifest.preprocessing.text is not None
        self._tokenizer = Tokenizer.open(package.folder, package.manifest.preprocessing.text)
        original = Original()
        self._model = load_argos(original.folder).family.model
        self._model.set_attn_implementation("sdpa")
        self._threads = threads

    def prepare(self, task: Task) -> str:
        self.play(task | {"texts": task["texts"][:_WARM_UP]})
        return f"{self._threads} threads, sdpa, batches by length"

    def play(self, task: Task) -> list[str]:
        texts, at_once = task["texts"], task["at_once"]
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found: dict[int, str] = {}
        for begin in range(0, len(order), at_once):
            part = order[begin : begin + at_once]
            found.update(zip(part, self._batch([texts[i] for i in part], task["beams"]), strict=True))
        return [found[index] for index in range(len(texts))]

    def _batch(self, texts: list[str], beams: int) -> list[str]:
        import torch

        ids = [self._tokenizer.encode(text) for text in texts]
        longest = max(map(len, ids))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        how: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 200}
        if beams > 1:
            how["early_stopping"] = True
        with torch.inference_mode():
            out = self._model.generate(tokens, attention_mask=mask, **how)
        return [self._tokenizer.decode(row) for row in out[:, 1:].tolist()]


class Original:
    """The published weights, unpacked for as long as this is held."""

    def __init__(self) -> None:
        from export.menu import fetch, menu

        self._scratch = tempfile.TemporaryDirectory()
        with zipfile.ZipFile(fetch(menu()[MODEL])) as archive:
            archive.extractall(self._scratch.name)  # pinned by its sha256
        self.folder = next(Path(self._scratch.name).iterdir())


_TRANSLATORS: dict[str, Callable[[int], Entrant]] = {
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
    compete(_TRANSLATORS, _PACKAGES)
