"""A family without a fused attention operator: rejected by default, exported with a stated reason on request."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

from headwaiter import open_model
from headwaiter_export.errors import SourceError
from headwaiter_export.pipeline import ExportRequest, export
from tests.checkpoints_kit import save_randomised
from tests.tokenizers_kit import write_bert_tokenizer


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deberta")
    config = DebertaV2Config(
        vocab_size=write_bert_tokenizer(folder),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        type_vocab_size=0,
        position_biased_input=False,
        num_labels=3,
    )
    torch.manual_seed(4)
    save_randomised(DebertaV2ForSequenceClassification(config), folder)
    return folder


def test_unfused_family_is_rejected_by_default(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"deberta-v2 cannot be fused .* --allow-unfused"):
        export(ExportRequest(str(checkpoint), out=tmp_path / "models"))
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_unfused_export_states_reason_and_is_batch_invariant(checkpoint: Path, tmp_path: Path) -> None:
    package = export(ExportRequest(str(checkpoint), out=tmp_path / "models", allow_unfused=True))
    fused = package.manifest.fused
    assert (fused.attention, fused.fused) == (2, 0)
    assert fused.unfused_reason is not None
    assert "no fused operator" in fused.unfused_reason
    texts = ["a table for two", "the bill", "what is the soup of the day, and is there any fish in it?"]
    with open_model(package.folder, threads=1) as model:
        batched = model.classify(text=texts)
        for text, labels in zip(texts, batched, strict=True):
            (single,) = model.classify(text=text)
            assert [label.score for label in single] == pytest.approx([label.score for label in labels], abs=1e-6)
