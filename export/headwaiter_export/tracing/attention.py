"""Fused attention operators of ONNX Runtime in traced graphs.

`bidirectional_attention`, `cross_attention` and `causal_attention` emit the operators directly. Zoo architectures call
them; Hugging Face models reach them through the attention interface of transformers, with padding and caches taken from
the current `TraceContext`. The operators exist only in traced graphs: eager runs use the model's own attention.

Queries, keys and values have the shape [rows, heads, length, head size], results [rows, length, heads, head size].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from headwaiter_export.errors import ExportError
from headwaiter_export.tracing.patching import simplified_modules

FUSED_OPERATORS = ("MultiHeadAttention", "GroupQueryAttention")
HEAD_SIZE_MULTIPLE = 8  # head sizes that GroupQueryAttention supports are multiples of this
_IMPLEMENTATION = "headwaiter"


def bidirectional_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend to the first `lengths` [rows] keys of each row; `bias` broadcasts to [rows, heads, queries, keys]."""
    return _multi_head_attention(query, _merge_heads(key), _merge_heads(value), value.shape[3], scale, lengths, bias)


def cross_attention(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, lengths: Tensor | None = None
) -> Tensor:
    """Attend to keys and values computed by the encoder graph, which the operator reads without a copy."""
    return _multi_head_attention(query, key, value, value.shape[3], scale, lengths, None)


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: tuple[Tensor, Tensor],
    *,
    last: Tensor,
    total: Tensor,
    scale: float,
    bias: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Attend causally to the new tokens and the cached past, to which the operator appends the new keys and values.

    `last` int32 [rows] is the index of the last token of each row, `total` int32 [] the largest of them plus one.
    Returns the result and the updated key and value caches.
    """
    rows, heads, length, size = query.shape
    padded_size = past[0].shape[3]
    query, key, value = (pad(t, (0, padded_size - size)) if padded_size > size else t for t in (query, key, value))
    attended, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        [
            _merge_heads(query),
            _merge_heads(key),
            _merge_heads(value),
            *past,
            last,
            total,
            *([None, None, None, bias] if bias is not None else []),
        ],
        {"num_heads": heads, "kv_num_heads": key.shape[1], "scale": float(scale)},
        dtypes=[query.dtype] * 3,
        shapes=[(rows, length, heads * padded_size), past[0].shape, past[1].shape],
        version=1,
    )
    return attended.view(rows, length, heads, padded_size)[..., :size], (present_key, present_value)


def cache_head_size(size: int) -> int:
    """Return the head size of the cache for heads of the given size: the next supported multiple."""
    return -(-size // HEAD_SIZE_MULTIPLE) * HEAD_SIZE_MULTIPLE


def _multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    value_size: int,
    scale: float,
    lengths: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    rows, heads, length, _ = query.shape
    inputs = [_merge_heads(query), key, value, None, lengths, bias]
    while inputs[-1] is None:
        inputs.pop()
    attended = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        {"num_heads": heads, "scale": float(scale)},
        dtype=query.dtype,
        shape=(rows, length, heads * value_size),
        version=1,
    )
    return attended.view(rows, length, heads, value_size)


def _merge_heads(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).reshape(heads.shape[0], heads.shape[2], -1)


@dataclass(slots=True)
class TraceContext:
    """Graph inputs that attention layers need while a graph is traced, and the states they produce."""

    lengths: Tensor | None = None  # unpadded length of each row, for self-attention
    source_lengths: Tensor | None = None  # unpadded source length of each row, for cross-attention
    past: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # cached keys and values, one pair per layer
    cross: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # keys and values of the source, per layer
    last: Tensor | None = None  # index of the last token of each row
    total: Tensor | None = None  # largest `last` plus one
    present: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # updated caches by layer
    states_in: dict[str, Tensor] = field(default_factory=dict)  # states of kind "replace" before this step, by name
    states_out: dict[str, Tensor] = field(default_factory=dict)  # the same states after this step
    step_lengths: Tensor | None = None  # number of tokens of this step in each row
    pending_key: Tensor | None = None  # keys last passed to the cache; identifies cached self-attention


_current_context: ContextVar[TraceContext | None] = ContextVar("trace_context", default=None)


@contextmanager
def use_trace_context(trace_context: TraceContext) -> Iterator[TraceContext]:
    """Make this the trace context of the current thread or task; restore the previous one on exit."""
    token = _current_context.set(trace_context)
    try:
        yield trace_context
    finally:
        _current_context.reset(token)


def trace_context() -> TraceContext | None:
    """Return the context of the graph being traced, or None while a model runs eagerly."""
    return _current_context.get()


@contextmanager
def with_fused_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use the fused operators as the model's attention; restore eager attention on exit."""
    _set_attention_implementation(model, _IMPLEMENTATION)
    try:
        with simplified_modules(model):
            yield
    finally:
        _set_attention_implementation(model, "eager")


def _set_attention_implementation(model: PreTrainedModel, name: str) -> None:
    model.set_attn_implementation(name)
    for module in model.modules():  # the call above does not reach submodules with their own config
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = name


def _hugging_face_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    _check_arguments(module, arguments)
    trace_context = _current_context.get()
    assert trace_context is not None
    scale = scaling if scaling is not None else query.shape[3] ** -0.5
    layer = getattr(module, "layer_idx", None)
    if key is trace_context.pending_key:
        _check_arguments(module, {"attention_mask": attention_mask})
        assert layer is not None
        assert trace_context.last is not None
        assert trace_context.total is not None
        attended, trace_context.present[layer] = causal_attention(
            query,
            key,
            value,
            trace_context.past[layer],
            last=trace_context.last,
            total=trace_context.total,
            scale=scale,
            bias=position_bias,
        )
        return attended, None
    if layer is not None and trace_context.cross and key is trace_context.cross[layer][0]:
        _check_arguments(module, {"attention_mask": attention_mask})
        # The position bias that T5 passes to cross-attention is all zeros.
        return cross_attention(query, key, value, scale=scale, lengths=trace_context.source_lengths), None
    bias = attention_mask if position_bias is None else position_bias
    return bidirectional_attention(query, key, value, scale=scale, lengths=trace_context.lengths, bias=bias), None


# Arguments that models pass to their attention although they do not change its result.
_IGNORED_ARGUMENTS = {
    "use_cache",  # whether to return the cache; the caches are always inputs and outputs of the graph
    "position_ids",  # already in the embeddings; only kernels for several sequences in one row read them
}


def _check_arguments(module: nn.Module, arguments: dict[str, Any]) -> None:
    """Raise `ExportError` for a set argument whose effect the fused operators would not reproduce."""
    for name, value in arguments.items():
        is_unset = value is None or (isinstance(value, int | float) and value == 0)
        if not is_unset and name not in _IGNORED_ARGUMENTS:
            raise ExportError(
                f"{type(module).__name__} passes {name!r} to its attention, which the fused operators do not support; "
                f"state an unfused_reason in the family and export it with --allow-unfused."
            )


def _no_mask(*_: Any, **__: Any) -> None:
    """Build no mask: the operators take padding as lengths and implement causality themselves."""


AttentionInterface.register(_IMPLEMENTATION, _hugging_face_attention)
AttentionMaskInterface.register(_IMPLEMENTATION, _no_mask)
