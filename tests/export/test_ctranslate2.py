"""Export of random Transformers saved by CTranslate2, compared with the translations of CTranslate2."""

from __future__ import annotations

import io
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import sentencepiece
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation
from ctranslate2.specs.model_spec import visit_spec

from headwaiter.tasks.text import Tokenizer
from headwaiter_export.errors import SourceError
from headwaiter_export.pipeline import ExportRequest, export
from tests.graphs_kit import Graphs, greedy, text_source
from tests.marks_kit import slow_except
from tests.tokenizers_kit import ENGLISH, NON_LATIN

SIZE, INNER, POSITIONS, STEPS = 36, 52, 64, 40
ATTRIBUTION = "By the test suite."
SHAPES: dict[str, tuple[Any, ...]] = {
    "embeddings": ("vocabulary", SIZE),
    "projection": ("vocabulary", SIZE),
    "position_encodings": (POSITIONS, SIZE),
    "self_attention/linear_0": (3 * SIZE, SIZE),
    "self_attention/linear_1": (SIZE, SIZE),
    "attention/linear_0": (SIZE, SIZE),
    "attention/linear_1": (2 * SIZE, SIZE),
    "attention/linear_2": (SIZE, SIZE),
    "ffn/linear_0": (INNER, SIZE),
    "ffn/linear_1": (SIZE, INNER),
    "layer_norm": (SIZE,),
}


@dataclass(frozen=True, slots=True)
class Case:
    quantization: str
    activation: Activation
    pre_norm: bool = False
    start_from_zero: bool = False
    tied: bool = True
    add_source_eos: bool = True
    zipped: bool = False


CASES = {
    "as OPUS-MT": Case("int8", Activation.SWISH, start_from_zero=True, zipped=True),
    "as OpenNMT": Case("float16", Activation.RELU, pre_norm=True, add_source_eos=False, tied=False, zipped=True),
    "fp32": Case("float32", Activation.GELU, pre_norm=True, start_from_zero=True),
    "int16": Case("int16", Activation.GELUTanh, tied=False),
    "bf16": Case("bfloat16", Activation.GELUSigmoid),
    "int8 and fp16": Case("int8_float16", Activation.Tanh, pre_norm=True),
}


@pytest.mark.parametrize("name", slow_except(CASES, "fp32"))
def test_export_ctranslate2_model_translates_identically(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    folder = _write(case, tmp_path / "model")
    source = _write_archive(folder, tmp_path / "tiny.argosmodel") if case.zipped else folder
    package = export(ExportRequest(str(source), name="tiny", out=tmp_path / "out"))
    assert package.manifest.task == "translation"
    assert package.manifest.languages == {"source": "zh", "target": "en"}
    assert package.manifest.attribution == ATTRIBUTION

    sentences = [*ENGLISH, *NON_LATIN[:2], "a", " ".join(ENGLISH[:2])[:95]]
    graphs, decoding = Graphs(package), package.manifest.decoding
    assert decoding is not None
    assert package.manifest.preprocessing.text is not None
    tokenizer = Tokenizer.open(package.folder, package.manifest.preprocessing.text)
    tokens = [tokenizer.encode(sentence) for sentence in sentences]
    assert 48 < max(map(len, tokens)) <= POSITIONS
    sources = [text_source(graphs, row) for row in tokens]
    generated, _ = greedy(graphs, sources, [decoding.decoder_start_token_ids] * len(sources), STEPS)
    vocabulary = json.loads((folder / "shared_vocabulary.json").read_text())
    assert [[vocabulary[token] for token in row] for row in generated.tolist()] == _translate_with_ctranslate2(
        folder, sentences
    )


def _translate_with_ctranslate2(folder: Path, sentences: list[str]) -> list[list[str]]:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    sources = [pieces.encode(text, out_type=str) for text in sentences]
    translator = ctranslate2.Translator(str(folder), compute_type="float32", inter_threads=1, intra_threads=1)
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=STEPS, max_input_length=0)
    return [result.hypotheses[0] for result in results]


def _write(case: Case, folder: Path) -> Path:
    folder.mkdir()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter((*ENGLISH, *NON_LATIN)),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    (folder / "sentencepiece.model").write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = ["<unk>", "<s>", "</s>", *(pieces.id_to_piece(index) for index in range(3, len(pieces) - 4))]
    spec = TransformerSpec.from_config((2, 1), 3, pre_norm=case.pre_norm, activation=case.activation)
    spec.decoder.start_from_zero_embedding = case.start_from_zero
    spec.config.add_source_eos = case.add_source_eos
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    _fill(spec, len(vocabulary), case.tied)
    spec.validate()
    spec.optimize(quantization=case.quantization)
    spec.save(str(folder))
    (folder / "metadata.json").write_text('{"from_code": "zh", "to_code": "en"}')
    (folder / "README.md").write_text(f"{ATTRIBUTION}\n")
    return folder


def _fill(spec: TransformerSpec, vocabulary: int, tied: bool) -> None:
    rng = np.random.default_rng(11)
    shared = rng.normal(0, 0.3, (vocabulary, SIZE)).astype(np.float32)

    def draw(layer: Any, name: str, _: object) -> None:
        prefix, part = name.rsplit("/", 1) if "/" in name else ("", name)
        if part not in ("weight", "bias", "gamma", "beta", "encodings"):
            return
        shape = next(SHAPES[key] for key in SHAPES if key in prefix.replace("embeddings_0", "embeddings"))
        if shape[0] == "vocabulary" and part == "weight" and tied:
            weight = shared
        elif part == "gamma":
            weight = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        else:
            sizes = [vocabulary if size == "vocabulary" else size for size in shape]
            weight = rng.normal(0, 0.3, sizes[:1] if part == "bias" else sizes).astype(np.float32)
        setattr(layer, part, weight)

    visit_spec(spec, draw)
    spec.decoder.projection.bias[2] = -100  # never </s>, so that every row has STEPS tokens


def _write_archive(folder: Path, target: Path) -> Path:
    """Write an archive in the layout of Argos, with the model in a subdirectory."""
    model_files = ("model.bin", "config.json", "shared_vocabulary.json")
    with zipfile.ZipFile(target, "w") as archive:
        for file in folder.iterdir():
            archive.write(file, f"zh_en/{'model/' if file.name in model_files else ''}{file.name}")
    return target


def _edit(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.bin").write_bytes(change((folder / "model.bin").read_bytes())) and None


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _shorten_vocabulary(folder: Path) -> None:
    file = folder / "shared_vocabulary.json"
    file.write_text(json.dumps(json.loads(file.read_text())[:-1]))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut in the data": (
        _edit(lambda content: content[: len(content) // 2]),
        "not a complete CTranslate2 model (file ends in",
    ),
    "cut at the end": (_edit(lambda content: content[:-3]), "not a complete CTranslate2 model"),
    "empty": (_edit(lambda _: b""), "not a complete CTranslate2 model"),
    "another version": (_edit(lambda content: struct.pack("<I", 5) + content[4:]), "version 5, supported is 6"),
    "another spec": (
        _edit(lambda content: content.replace(b"TransformerSpec", b"WhisperTinySpec")),
        "is a CTranslate2 WhisperTinySpec; only TransformerSpec is supported",
    ),
    "no SentencePiece model": (_remove("sentencepiece.model"), "has no sentencepiece.model"),
    "broken SentencePiece model": (
        lambda folder: (folder / "sentencepiece.model").write_bytes(b"soup") and None,
        "is not a readable SentencePiece model",
    ),
    "no vocabulary": (_remove("shared_vocabulary.json"), "has no shared_vocabulary.json"),
    "short vocabulary": (_shorten_vocabulary, "embeddings, but its vocabulary has"),
    "config that is not JSON": (
        lambda folder: (folder / "config.json").write_text("{") and None,
        "config.json is not valid JSON",
    ),
    "vocabulary that is not JSON": (
        lambda folder: (folder / "shared_vocabulary.json").write_text("{") and None,
        "shared_vocabulary.json is not valid JSON",
    ),
}


@pytest.fixture(scope="module")
def intact_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(CASES["as OPUS-MT"], tmp_path_factory.mktemp("intact") / "model")


@pytest.mark.parametrize("damage", DAMAGES)
def test_export_damaged_ctranslate2_model_is_rejected(damage: str, intact_model: Path, tmp_path: Path) -> None:
    apply, fragment = DAMAGES[damage]
    folder = Path(shutil.copytree(intact_model, tmp_path / "model"))
    apply(folder)
    with pytest.raises(SourceError) as caught:
        export(ExportRequest(str(folder), out=tmp_path / "out"))
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "out").rglob("*"))


def test_export_truncated_archive_is_rejected(intact_model: Path, tmp_path: Path) -> None:
    package = _write_archive(intact_model, tmp_path / "tiny.argosmodel")
    package.write_bytes(package.read_bytes()[:5000])
    with pytest.raises(SourceError, match="is not a complete Argos package"):
        export(ExportRequest(str(package), out=tmp_path / "out"))


def test_unpack_archive_paths_are_ignored(intact_model: Path, tmp_path: Path) -> None:
    package = _write_archive(intact_model, tmp_path / "tiny.argosmodel")
    with zipfile.ZipFile(package, "a") as archive:
        archive.writestr("../../../outside/README.md", "escaped")
        archive.writestr("/metadata.json", "{")
    with pytest.raises(SourceError, match=r"metadata\.json is not valid JSON"):
        export(ExportRequest(str(package), out=tmp_path / "out"))
    assert not (tmp_path.parent / "outside").exists()


def test_unpack_file_that_expands_beyond_limit_is_rejected(intact_model: Path, tmp_path: Path) -> None:
    package = _write_archive(intact_model, tmp_path / "tiny.argosmodel")
    with zipfile.ZipFile(package, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/README.md", bytes(80 << 20))
    assert package.stat().st_size < 10 << 20
    with pytest.raises(SourceError, match=r"has a README\.md of 80 MiB; the limit is 64 MiB"):
        export(ExportRequest(str(package), out=tmp_path / "out"))
