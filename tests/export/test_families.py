"""Graphs of every family, exported from tiny checkpoints, compared with the original models in transformers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwaiter.package.manifest import Manifest, Task, open_package, padded_length, verify
from tests.checkpoints_kit import CHECKPOINTS, CLASSES, POSITIONS
from tests.conftest import Packages
from tests.graphs_kit import Arrays, DecoderBatch, Graphs, greedy, right_padded, stacked, text_source
from tests.marks_kit import slow_except
from tests.references_kit import generate_greedy, load_original, relative_difference, run_forward

TOLERANCE = 1e-4
STEPS = 40


@dataclass(frozen=True, slots=True)
class Expected:
    task: Task
    transformers_class: str
    operators: dict[str, int]
    limits: dict[str, int] = field(default_factory=dict)
    multi_label: bool = False


def _attention(multi_head: int = 0, group_query: int = 0) -> dict[str, int]:
    counts = {"MultiHeadAttention": multi_head, "GroupQueryAttention": group_query}
    return {name: count for name, count in counts.items() if count}


LENGTH, MAX_LENGTH = {"length": POSITIONS}, {"max_length": POSITIONS}
SEQUENCES, T5_SEQUENCES = {"source": POSITIONS, **MAX_LENGTH}, {"source": 512, "max_length": 512}
BERT, ROBERTA = "BertForSequenceClassification", "RobertaForSequenceClassification"
DISTILBERT, CAPTIONER = "DistilBertForSequenceClassification", "VisionEncoderDecoderModel"

EXPECTED = {
    "marian": Expected("translation", "MarianMTModel", _attention(3 + 2, 2), SEQUENCES),
    "bart": Expected("translation", "BartForConditionalGeneration", _attention(1 + 2, 2), SEQUENCES),
    "t5": Expected("translation", "T5ForConditionalGeneration", _attention(2 + 2, 2), T5_SEQUENCES),
    "t5-gated": Expected("translation", "T5ForConditionalGeneration", _attention(2 + 2, 2), T5_SEQUENCES),
    "caption-vit": Expected("captioning", CAPTIONER, _attention(2 + 2, 2), {"height": 24, "width": 40, **MAX_LENGTH}),
    "caption-deit": Expected("captioning", CAPTIONER, _attention(2 + 2, 2), {"height": 32, "width": 32, **MAX_LENGTH}),
    "caption-swin": Expected("captioning", CAPTIONER, _attention(3 + 2, 2), {"height": 28, "width": 28, **MAX_LENGTH}),
    "gpt2": Expected("generation", "GPT2LMHeadModel", _attention(0, 3), MAX_LENGTH),
    "vit": Expected(
        "classification", "ViTForImageClassification", _attention(2), {"height": 24, "width": 40}, multi_label=True
    ),
    "deit": Expected("classification", "DeiTForImageClassification", _attention(2), {"height": 32, "width": 32}),
    "swin": Expected("classification", "SwinForImageClassification", _attention(3), {"height": 28, "width": 28}),
    "bert": Expected("classification", BERT, _attention(2), LENGTH),
    "distilbert": Expected("classification", DISTILBERT, _attention(2), LENGTH, multi_label=True),
    "roberta": Expected("classification", ROBERTA, _attention(2), LENGTH),
    "detr": Expected("detection", "DetrForObjectDetection", _attention(1 + 2 + 2)),
    "yolos": Expected("detection", "YolosForObjectDetection", _attention(2)),
    "decision_transformer": Expected(
        "policy", "DecisionTransformerModel", _attention(0, 2), {"timesteps": 23, "max_length": 3 * 23}
    ),
}
CLASSIFIERS = [kind for kind, expected in EXPECTED.items() if expected.task == "classification"]
DETECTORS = [kind for kind, expected in EXPECTED.items() if expected.task == "detection"]
TEXT_DECODERS = [
    kind for kind, expected in EXPECTED.items() if expected.task in ("translation", "captioning", "generation")
]


def test_checkpoints_all_have_expectations() -> None:
    assert EXPECTED.keys() == CHECKPOINTS.keys()


@pytest.mark.parametrize("kind", slow_except(CLASSIFIERS, "bert", "vit"))
def test_export_classifier_matches_original(kind: str, packages: Packages) -> None:
    exported = packages(kind, "fp32")
    manifest = _check_package(kind, exported.package.folder)
    assert manifest.labels == CLASSES
    assert [(port.name, port.shape) for port in manifest.graphs["model"].outputs] == [("scores", ("rows", 5))]
    graphs, model = Graphs(exported.package), load_original(EXPECTED[kind].transformers_class, exported.checkpoint)
    rng = np.random.default_rng(3)
    for rows, length in ((1, 1), (1, POSITIONS), (2, 16), (5, 1), (5, 33), (5, POSITIONS)):
        feeds = _texts(manifest, rows, length, rng) if manifest.preprocessing.text else _pixels(manifest, rows, rng)
        scores, expected = graphs.run("model", feeds)["scores"], run_forward(model, feeds)["scores"]
        assert relative_difference(scores, expected) <= TOLERANCE


@pytest.mark.parametrize("kind", slow_except(DETECTORS, "detr"))
def test_export_detector_matches_original(kind: str, packages: Packages) -> None:
    exported = packages(kind, "fp32")
    manifest = _check_package(kind, exported.package.folder)
    assert manifest.labels == CLASSES
    assert [(port.name, port.shape) for port in manifest.graphs["model"].outputs] == [
        ("scores", ("rows", 7, 6)),
        ("boxes", ("rows", 7, 4)),
    ]
    graphs, model = Graphs(exported.package), load_original(EXPECTED[kind].transformers_class, exported.checkpoint)
    rng = np.random.default_rng(3)
    for rows, height, width in ((1, 48, 80), (5, 48, 80), (1, 33, 97), (2, 112, 48), (3, 160, 160)):
        feeds = {"pixels": rng.standard_normal((rows, 3, height, width)).astype(np.float32)}
        outputs, expected = graphs.run("model", feeds), run_forward(model, feeds)
        assert relative_difference(outputs["scores"], expected["scores"]) <= TOLERANCE
        assert np.abs(outputs["boxes"] - expected["boxes"]).max() <= TOLERANCE


@pytest.mark.parametrize("kind", slow_except(TEXT_DECODERS, "marian", "caption-vit", "gpt2"))
def test_export_text_decoder_matches_original(kind: str, packages: Packages) -> None:
    exported = packages(kind, "fp32")
    manifest = _check_package(kind, exported.package.folder)
    _check_decoder_signature(manifest)
    assert manifest.cuda == {"decoder": {"GroupQueryAttention": "no kernel for float, int32"}}
    graphs, model = Graphs(exported.package), load_original(EXPECTED[kind].transformers_class, exported.checkpoint)
    rng = np.random.default_rng(3)
    rows = 5
    sources = _sources(graphs, rows, rng)
    prompts = _prompts(manifest, rows, rng)
    expected = [
        generate_greedy(model, source, prompts[row], STEPS) for row, source in enumerate(sources or [{}] * rows)
    ]
    expected_tokens, expected_logits = (np.stack(part) for part in zip(*expected, strict=True))
    assert len({tuple(row) for row in expected_tokens}) > rows // 2, (
        "the rows must differ for the comparison to be meaningful"
    )

    for joins in ([0] * rows, [0, 0, 2, 3, 11]):
        tokens, logits = greedy(graphs, sources, prompts, STEPS, joins)
        assert tokens.tolist() == expected_tokens.tolist()
        assert relative_difference(logits, expected_logits) <= TOLERANCE

    single_row, _ = greedy(graphs, sources[2:3], prompts[2:3], STEPS)
    assert single_row.tolist() == expected_tokens[2:3].tolist()

    if manifest.limits["max_length"] == POSITIONS:
        _check_full_length(graphs, model, sources[:1])
    if kind == "marian":
        _check_decoding_defaults(manifest)


def test_export_policy_matches_original(packages: Packages) -> None:
    """Runs whole episodes with three tokens per step; one of them joins the batch while others are running."""
    exported = packages("decision_transformer", "fp32")
    manifest = _check_package("decision_transformer", exported.package.folder)
    assert manifest.policy is not None
    assert (manifest.policy.state_size, manifest.policy.action_size) == (5, 3)
    model = load_original("DecisionTransformerModel", exported.checkpoint)
    rows, length, joins = 3, manifest.limits["timesteps"], (0, 0, 4)
    rng = np.random.default_rng(3)
    episodes = {
        name: rng.standard_normal((rows, length, size)).astype(np.float32)
        for name, size in (("returns", 1), ("states", 5), ("actions", 3))
    }
    with torch.no_grad():
        expected = model(
            states=torch.from_numpy(episodes["states"]),
            actions=torch.from_numpy(episodes["actions"]),
            rewards=None,
            returns_to_go=torch.from_numpy(episodes["returns"]),
            timesteps=torch.arange(length)[None].expand(rows, -1),
        ).action_preds.numpy()
    actions = _run_episodes(DecoderBatch(Graphs(exported.package), rows, 3 * length), episodes, joins)
    for row, join in enumerate(joins):
        assert np.abs(actions[row, : length - join] - expected[row, : length - join]).max() <= 2 * TOLERANCE


def _check_full_length(graphs: Graphs, model: Any, sources: list[Arrays]) -> None:
    """Decode up to the last position of the model after a long prompt."""
    prompt = [*graphs.manifest.decoding.decoder_start_token_ids, *range(20, 29)]  # type: ignore[union-attr]
    steps = graphs.manifest.limits["max_length"] - len(prompt)
    tokens, logits = greedy(graphs, sources, [prompt], steps)
    expected_tokens, expected_logits = generate_greedy(model, sources[0] if sources else {}, prompt, steps)
    assert tokens[0].tolist() == expected_tokens.tolist()
    assert relative_difference(logits[0], expected_logits) <= TOLERANCE


def _check_decoding_defaults(manifest: Manifest) -> None:
    decoding = manifest.decoding
    assert decoding is not None
    vocabulary = next(port.shape[1] for port in manifest.graphs["decoder"].outputs if port.name == "logits")
    pad = int(vocabulary) - 1
    assert (decoding.decoder_start_token_ids, decoding.eos_token_ids, decoding.suppress_tokens) == (
        (pad,),
        (0,),
        (pad,),
    )
    assert (decoding.forced_eos_token_id, decoding.num_beams, decoding.do_sample) == (0, 4, False)
    assert decoding.max_new_tokens <= 50


def _run_episodes(batch: DecoderBatch, episodes: Arrays, joins: tuple[int, ...]) -> np.ndarray:
    rows, length = episodes["returns"].shape[:2]
    actions = np.zeros((rows, length, episodes["actions"].shape[2]), np.float32)
    for tick in range(length):
        batch.add_rows({}, sum(join <= tick for join in joins) - batch.row_count)
        times = np.array([tick - join for join in joins[: batch.row_count]])
        current = {name: value[np.arange(batch.row_count), times][:, None] for name, value in episodes.items()}
        for token in range(3):
            feeds = {
                "kinds": np.full((batch.row_count, 1), token),
                "timesteps": times[:, None],
                **current,
                "returns": current["returns"][:, :, 0],
            }
            outputs = batch.advance(slice(0, batch.row_count), feeds, np.ones(batch.row_count, np.int32))
            if token == 1:
                actions[np.arange(batch.row_count), times] = outputs["action"]
    return actions


def _check_package(kind: str, folder: Path) -> Manifest:
    """Check the properties that packages of all families have in common."""
    package = open_package(folder)
    verify(package)
    manifest, expected = package.manifest, EXPECTED[kind]
    assert (manifest.task, manifest.limits, manifest.multi_label) == (
        expected.task,
        expected.limits,
        expected.multi_label,
    )
    assert manifest.fused.operators == expected.operators
    assert manifest.fused.attention == manifest.fused.fused == sum(expected.operators.values())
    assert sum(graph.fused for graph in manifest.graphs.values()) == manifest.fused.fused
    assert manifest.parity.logits <= TOLERANCE
    assert manifest.parity.batched <= TOLERANCE
    assert {file.name for file in package.folder.iterdir()} == {*manifest.sha256, "manifest.json"}
    for graph in manifest.graphs.values():
        per_row = [port for port in (*graph.inputs, *graph.outputs) if port.name not in ("total", "k")]
        assert all(port.shape[0] == "rows" for port in per_row)
    return manifest


def _check_decoder_signature(manifest: Manifest) -> None:
    decoder = manifest.graphs["decoder"]
    inputs, outputs = ({port.name: port for port in ports} for ports in (decoder.inputs, decoder.outputs))
    assert inputs["tokens"].shape == ("rows", "steps")
    assert inputs["positions"].dtype == inputs["total"].dtype == "int32"
    assert inputs["total"].shape == ()
    assert outputs["top_scores"].shape == outputs["top_tokens"].shape == ("rows", "k")
    assert {state.input for state in manifest.states} == {name for name in inputs if name.startswith("past.")}
    for state in manifest.states:
        assert state.kind == "append"
        assert state.shape == inputs[state.input].shape == outputs[state.output].shape
        assert state.shape[0] == "rows"
        assert state.shape[2] == "max_length"
    cross_inputs = {name for name in inputs if name.startswith("cross.")}
    encoder_outputs = manifest.graphs["encoder"].outputs if "encoder" in manifest.graphs else ()
    assert cross_inputs == {port.name for port in encoder_outputs}
    assert ("source_lengths" in inputs) == (manifest.task == "translation")


def _pixels(manifest: Manifest, rows: int, rng: np.random.Generator) -> Arrays:
    size = manifest.limits["height"], manifest.limits["width"]
    return {"pixels": rng.standard_normal((rows, 3, *size)).astype(np.float32)}


def _texts(manifest: Manifest, rows: int, longest: int, rng: np.random.Generator) -> Arrays:
    lengths = rng.integers(1, longest + 1, rows).astype(np.int32)
    lengths[rows // 2] = longest
    width = min(padded_length(longest), manifest.limits["length"])
    pad = manifest.preprocessing.text.pad  # type: ignore[union-attr]
    tokens = rng.integers(5, 300, (rows, width))
    unpadded = np.arange(width)[None] < lengths[:, None]
    feeds = {"tokens": np.where(unpadded, tokens, pad), "lengths": lengths}
    if any(port.name == "segments" for port in manifest.graphs["model"].inputs):
        feeds["segments"] = (unpadded & (np.arange(width)[None] > lengths[:, None] // 3)).astype(np.int64)
    return feeds


def _sources(graphs: Graphs, rows: int, rng: np.random.Generator) -> list[Arrays]:
    """Return texts of one token up to the maximum length, images, or nothing, depending on the task."""
    manifest = graphs.manifest
    if manifest.task == "translation":
        lengths = [manifest.limits["source"], 1, *rng.integers(2, 40, rows - 2).tolist()][:rows]
        return [text_source(graphs, rng.integers(0, 250, length).tolist()) for length in lengths]
    return [_pixels(manifest, 1, rng) for _ in range(rows)] if manifest.task == "captioning" else []


def _prompts(manifest: Manifest, rows: int, rng: np.random.Generator) -> list[list[int]]:
    """Return the start token, followed by random tokens for tasks with a prompt."""
    assert manifest.decoding is not None
    start = list(manifest.decoding.decoder_start_token_ids)
    if manifest.task == "translation":
        return [start] * rows
    return [[*start, *rng.integers(0, 300, length).tolist()] for length in (1, 5, 3, 8, 1)[:rows]]


def test_stacked_pads_narrower_rows() -> None:
    narrow = {"tokens": right_padded([[1, 2]]), "lengths": np.array([2], np.int32)}
    wide = {"tokens": right_padded([[3, 4, 5]]), "lengths": np.array([3], np.int32)}
    both = stacked([narrow, wide])
    assert both["tokens"].tolist() == [[1, 2, 0], [3, 4, 5]]
    assert both["lengths"].tolist() == [2, 3]
