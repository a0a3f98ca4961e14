"""Translators that compete, each in a process of its own: it is told how many sentences to take at once and with how
many beams, and answers how long it took and what came out. `python -m loadtest.translators NAME` starts one."""

from __future__ import annotations

import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

Translate = Callable[[list[str], int, int], list[str]]  # sentences, how many at once, beams
MODEL = "opus-mt-zh-en"


def headwaiter(precision: str, threads: int) -> Translate:
    from service import open_model

    model = open_model(Path("models") / MODEL, precision=precision, threads=threads)

    def translate(texts: list[str], at_once: int, beams: int) -> list[str]:
        chunk = len(texts) if at_once >= 64 else at_once  # its engine takes 64 rows at once by itself
        return [w.text for i in range(0, len(texts), chunk) for w in model.translate(texts[i : i + chunk], beams=beams)]

    return translate


def ctranslate2(compute: str, threads: int) -> Translate:
    import ctranslate2 as peer
    from sentencepiece import SentencePieceProcessor

    folder = _unpacked()
    pieces = SentencePieceProcessor(model_file=str(next(folder.rglob("sentencepiece.model"))))
    model = next(folder.rglob("model.bin")).parent
    translator = peer.Translator(str(model), compute_type=compute, inter_threads=1, intra_threads=threads)

    def translate(texts: list[str], at_once: int, beams: int) -> list[str]:
        tokens = [pieces.encode(text, out_type=str) for text in texts]
        if at_once >= 64:
            found = translator.translate_batch(tokens, beam_size=beams, max_batch_size=64)
        else:
            chunks = [tokens[i : i + at_once] for i in range(0, len(tokens), at_once)]
            found = [one for chunk in chunks for one in translator.translate_batch(chunk, beam_size=beams)]
        return ["".join(one.hypotheses[0]).replace("▁", " ").strip() for one in found]

    return translate


def transformers(_: str, threads: int) -> Translate:
    import torch

    from export.argos import load_argos
    from service.package import open_package
    from service.tasks.text import Tokenizer

    torch.set_num_threads(threads)
    package = open_package(Path("models") / MODEL)
    assert package.manifest.preprocessing.text is not None
    tokenizer = Tokenizer.open(package.folder, package.manifest.preprocessing.text)
    model = load_argos(_unpacked()).family.model
    model.set_attn_implementation("sdpa")

    def batch(texts: list[str], beams: int) -> list[str]:
        ids = [tokenizer.encode(text) for text in texts]
        longest = max(map(len, ids))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        with torch.inference_mode():
            out = model.generate(tokens, attention_mask=mask, num_beams=beams, max_new_tokens=200)
        return [tokenizer.decode(row) for row in out[:, 1:].tolist()]

    def translate(texts: list[str], at_once: int, beams: int) -> list[str]:
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        found: dict[int, str] = {}
        for begin in range(0, len(order), at_once):
            part = order[begin : begin + at_once]
            found.update(zip(part, batch([texts[i] for i in part], beams), strict=True))
        return [found[index] for index in range(len(texts))]

    return translate


TRANSLATORS: dict[str, Callable[[int], Translate]] = {
    "headwaiter fp32": lambda threads: headwaiter("fp32", threads),
    "headwaiter int8": lambda threads: headwaiter("int8", threads),
    "ctranslate2 fp32": lambda threads: ctranslate2("float32", threads),
    "ctranslate2 int8": lambda threads: ctranslate2("int8", threads),
    "transformers fp32": lambda threads: transformers("fp32", threads),
}


def _unpacked() -> Path:
    from export.menu import fetch, menu

    folder = Path(tempfile.mkdtemp())
    with zipfile.ZipFile(fetch(menu()[MODEL])) as archive:
        archive.extractall(folder)  # pinned by its sha256
    return next(folder.iterdir())


def main() -> None:
    """Reads a line of JSON for each round, writes one for each answer."""
    replies = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is not a reply
    translate = TRANSLATORS[sys.argv[1]](int(sys.argv[2]))
    replies.write('"ready"\n')
    replies.flush()
    for line in sys.stdin:
        task = json.loads(line)
        begun = time.perf_counter()
        texts = translate(task["texts"], task["at_once"], task["beams"])
        replies.write(json.dumps({"seconds": time.perf_counter() - begun, "texts": texts}) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
