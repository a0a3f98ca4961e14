"""The trace context and the attention that Hugging Face models call while a graph is traced."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from headwaiter_export.errors import ExportError
from headwaiter_export.families.family import Family, family, find_family
from headwaiter_export.families.text_classification import DistilBert
from headwaiter_export.pipeline import ExportRequest, export
from headwaiter_export.tracing.attention import TraceContext, trace_context, use_trace_context
from headwaiter_export.tracing.graph import GraphSpec, TensorSpec, trace


def test_trace_context_nested_is_restored_on_exit_and_error() -> None:
    outer, inner = TraceContext(), TraceContext()
    with use_trace_context(outer):
        with suppress(ValueError), use_trace_context(inner):
            assert trace_context() is inner
            raise ValueError
        assert trace_context() is outer
    assert trace_context() is None


def test_trace_context_is_not_visible_in_other_threads() -> None:
    seen: list[TraceContext | None] = []
    with use_trace_context(TraceContext()):
        thread = threading.Thread(target=lambda: seen.append(trace_context()))
        thread.start()
        thread.join(timeout=10)
    assert seen == [None]


class Attention(nn.Module):
    """Calls the attention of the Hugging Face interface with additional arguments."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        heads = inputs["states"]
        attention: Any = AttentionInterface()["headwaiter"]
        with use_trace_context(TraceContext()):
            attended, _ = attention(self, heads, heads, heads, None, **self.arguments)
        return {"attended": attended}


def _trace_with(**arguments: Any) -> int:
    states = TensorSpec(torch.float32, ("rows", 2, "length", 8))
    outputs = {"attended": TensorSpec(torch.float32, ("rows", "length", 2, 8))}
    model = trace(GraphSpec("model", Attention(**arguments), {"states": states}, outputs))
    return sum(node.op_type == "MultiHeadAttention" for node in model.graph)


@pytest.mark.parametrize(
    "arguments",
    [
        {"dropout": 0.0, "is_causal": False, "sliding_window": None},
        {"use_cache": True, "position_ids": torch.zeros(1, 3)},
    ],
    ids=["unset", "without effect"],
)
def test_attention_argument_without_effect_is_ignored(arguments: dict[str, Any]) -> None:
    assert _trace_with(**arguments) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("sliding_window", 128), ("softcap", 30.0), ("is_causal", True), ("s_aux", torch.zeros(2)), ("dropout", 0.1)],
)
def test_attention_argument_with_effect_is_an_export_error(name: str, value: Any) -> None:
    with pytest.raises(ExportError, match=rf"Attention passes '{name}' to its attention"):
        _trace_with(**{name: value})


class WindowedDistilBert(DistilBert):
    """A family whose attention sees only a window of the text."""

    def run_model(self, inputs: dict[str, Tensor], mask: Tensor | None) -> dict[str, Tensor]:
        return {
            "scores": self.model(input_ids=inputs["tokens"], attention_mask=mask, sliding_window=4).logits,
        }


def test_export_with_unknown_attention_argument_writes_no_package(
    tmp_path: Path, checkpoints: Callable[[str], Path]
) -> None:
    real: type[Family] = find_family("distilbert")
    family("distilbert")(WindowedDistilBert)
    try:
        with pytest.raises(ExportError, match="'sliding_window'"):
            export(ExportRequest(str(checkpoints("distilbert")), out=tmp_path / "models"))
    finally:
        family("distilbert")(real)
    assert not (tmp_path / "models").exists()
