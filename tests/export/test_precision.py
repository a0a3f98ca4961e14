"""fp16 and int8 packages of every family: size, precision loss and batch invariance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from transformers import MarianConfig, MarianMTModel

from headwaiter.package.manifest import WEIGHTS, Manifest, Precision, padded_length
from headwaiter_export.pipeline import ExportRequest, export
from tests.conftest import Packages
from tests.graphs_kit import Arrays, DecoderBatch, Graphs, greedy, stacked, text_source
from tests.marks_kit import slow_except
from tests.tokenizers_kit import write_marian_tokenizer

TEXT_DECODERS = ("marian", "bart", "t5", "caption-vit", "gpt2")
SINGLE_PASS = ("vit", "deit", "swin", "bert", "distilbert", "roberta", "detr", "yolos")
FAMILIES = (*TEXT_DECODERS, *SINGLE_PASS, "decision_transformer")
BATCHES = (2, 5, 16)
ROWS = max(BATCHES)
STEPS = 40


@pytest.mark.parametrize("kind", slow_except(FAMILIES, "bert"))
def test_fp16_has_no_cpu_fallbacks(kind: str, packages: Packages) -> None:
    manifest = packages(kind, "fp16").package.manifest
    assert manifest.loss is not None
    assert 0 < manifest.loss.logits < 0.02
    _check_top_answers(manifest)
    assert manifest.cuda == {}
    assert {state.dtype for state in manifest.states} <= {"float16"}
    fp32_outputs = ("logits", "scores", "boxes", "action", "top_scores")
    dtypes = {port.name: port.dtype for graph in manifest.graphs.values() for port in graph.outputs}
    assert {dtypes[name] for name in fp32_outputs if name in dtypes} == {"float32"}
    assert {dtype for name, dtype in dtypes.items() if name.startswith("cross.")} <= {"float16"}


@pytest.mark.parametrize("kind", slow_except(FAMILIES, "bert"))
def test_int8_is_batch_invariant(kind: str, packages: Packages) -> None:
    package = packages(kind, "int8").package
    assert package.manifest.loss is not None
    assert 0 < package.manifest.loss.logits < 0.25
    _check_top_answers(package.manifest)
    assert package.manifest.loss.batched < 1e-6
    outputs = _output_function(Graphs(package), np.random.default_rng(5))
    single_rows = np.concatenate([outputs(slice(row, row + 1)) for row in range(ROWS)])
    for size in BATCHES:
        batched = np.concatenate([outputs(slice(start, start + size)) for start in range(0, ROWS, size)])
        assert batched.tobytes() == single_rows.tobytes(), f"batches of {size}"


def _check_top_answers(manifest: Manifest) -> None:
    """Equal top answers are counted wherever answers are discrete, and most of them are equal."""
    assert manifest.loss is not None
    if manifest.policy is not None and manifest.policy.actions == "continuous":
        assert manifest.loss.top_answers is None
        return
    assert manifest.loss.top_answers is not None
    equal, compared = map(int, manifest.loss.top_answers.split("/"))
    assert compared >= 32
    assert 0.5 * compared < equal <= compared
    assert manifest.loss.tokens in (None, manifest.loss.top_answers)


def _output_function(graphs: Graphs, rng: np.random.Generator) -> Callable[[slice], np.ndarray]:
    """Return a function that runs the graphs on a slice of the same `ROWS` random inputs."""
    manifest = graphs.manifest
    if manifest.task == "policy":
        numbers = rng.standard_normal((ROWS, 10, 3, 9)).astype(np.float32)
        return lambda which: np.stack(list(_actions(graphs, numbers[which])), 1)
    rows = [_input(graphs, length, rng) for length in rng.integers(1, 60, ROWS)]
    if "decoder" not in manifest.graphs:
        return lambda which: graphs.run("model", stacked(rows[which]))["scores"]
    start = list(manifest.decoding.decoder_start_token_ids)  # type: ignore[union-attr]
    prompts = [start if manifest.task == "translation" else [*start, *range(9, 10 + row % 5)] for row in range(ROWS)]
    sources = [] if manifest.task == "generation" else rows
    return lambda which: greedy(graphs, sources[which], prompts[which], STEPS)[0]


def _input(graphs: Graphs, length: int, rng: np.random.Generator) -> Arrays:
    manifest = graphs.manifest
    if manifest.task == "generation":
        return {}
    if manifest.preprocessing.image is not None:
        size = manifest.limits.get("height", 48), manifest.limits.get("width", 80)
        return {"pixels": (rng.standard_normal((1, 3, *size)) * length).astype(np.float32)}
    tokens = rng.integers(5, 250, length).tolist()
    if manifest.task == "translation":
        return text_source(graphs, tokens)
    width = min(padded_length(length), manifest.limits["length"])
    feeds = {"tokens": np.zeros((1, width), np.int64), "lengths": np.array([length], np.int32)}
    feeds["tokens"][0, :length] = tokens
    has_segments = any(port.name == "segments" for port in manifest.graphs["model"].inputs)
    return {**feeds, "segments": np.zeros_like(feeds["tokens"])} if has_segments else feeds


def _actions(graphs: Graphs, numbers: np.ndarray) -> Iterator[np.ndarray]:
    rows, length = numbers.shape[:2]
    batch = DecoderBatch(graphs, rows, 3 * length)
    row_slice = batch.add_rows({}, rows)
    for time in range(length):
        for kind in range(3):
            current = numbers[:, time, kind]
            feeds = {
                "kinds": np.full((rows, 1), kind),
                "timesteps": np.full((rows, 1), time),
                "returns": current[:, :1],
                "states": current[:, None, 1:6],
                "actions": current[:, None, 6:9],
            }
            outputs = batch.advance(row_slice, feeds, np.ones(rows, np.int32))
            if kind == 1:
                yield outputs["action"]


@pytest.fixture(scope="module")
def medium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Marian checkpoint of 5.9 M parameters with a realistic share of embedding weights."""
    folder = tmp_path_factory.mktemp("medium")
    write_marian_tokenizer(folder)
    config = MarianConfig(
        vocab_size=8001,
        d_model=256,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        max_position_embeddings=256,
        pad_token_id=8000,
        decoder_start_token_id=8000,
        init_std=0.05,
    )
    MarianMTModel(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_weights_size_matches_precision(medium: Path, tmp_path: Path) -> None:
    """Both graphs share one set of weights, and tied embeddings are stored once."""

    def export_medium(precision: Precision) -> tuple[Manifest, int]:
        package = export(ExportRequest(str(medium), name="medium", out=tmp_path, precision=precision))
        return package.manifest, package.file(WEIGHTS).stat().st_size

    manifest, fp32_size = export_medium("fp32")
    assert 5e6 < manifest.parameters < 1e7
    assert fp32_size <= 1.05 * 4 * manifest.parameters
    assert export_medium("fp16")[1] <= 1.05 * 2 * manifest.parameters
    assert export_medium("int8")[1] <= 0.4 * fp32_size
    graph_size = sum(file.stat().st_size for file in tmp_path.rglob("*.onnx"))
    assert graph_size < 1e6, "the weights belong into the weights file"
