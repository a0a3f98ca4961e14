"""The one place where attention becomes a fused operator.

`bidirectional`, `across` and `causal` emit ONNX Runtime's operators directly. Architectures of our own call them;
Hugging Face models reach them through transformers' attention interface, inside a `Scene` that knows what the graph
being traced knows about padding and caches. The operators exist only in the traced graph: eager runs of a model use
its own attention.

All tensors are [rows, heads, length, size]; what comes back is [rows, length, heads, size].
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from export.patching import plain_parts

FUSED_OPERATORS = ("MultiHeadAttention", "GroupQueryAttention")
HEAD_SIZE_STEP = 8  # GroupQueryAttention takes head sizes that are multiples of this
_IMPLEMENTATION = "headwaiter"


def bidirectional(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Every query sees its row's first `lengths` [rows] keys; `bias` broadcasts to [rows, heads, queries, keys]."""
    return _multi_head(query, _flat(key), _flat(value), value.shape[3], scale, lengths, bias)


def across(query: Tensor, key: Tensor, value: Tensor, *, scale: float, lengths: Tensor | None = None) -> Tensor:
    """The same over keys and values computed once by another graph: they go in as they are, without a copy."""
    return _multi_head(query, key, value, value.shape[3], scale, lengths, None)


def causal(
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
    """New tokens see themselves, those before them and the cached past; the operator writes them into the past.

    `last` int32 [rows] is the index of each row's last token, `total` int32 the largest of them plus one.
    """
    rows, heads, length, size = query.shape
    room = past[0].shape[3]
    query, key, value = (pad(t, (0, room - size)) if room > size else t for t in (query, key, value))
    out, present_key, present_value = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::GroupQueryAttention",
        [
            _flat(query),
            _flat(key),
            _flat(value),
            *past,
            last,
            total,
            *([None, None, None, bias] if bias is not None else []),
        ],
        {"num_heads": heads, "kv_num_heads": key.shape[1], "scale": float(scale)},
        dtypes=[query.dtype] * 3,
        shapes=[(rows, length, heads * room), past[0].shape, past[1].shape],
        version=1,
    )
    return out.view(rows, length, heads, room)[..., :size], (present_key, present_value)


def cached_size(size: int) -> int:
    """The head size a cache must have for heads of this size."""
    return -(-size // HEAD_SIZE_STEP) * HEAD_SIZE_STEP


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    value_size: int,
    scale: float,
    lengths: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    rows, heads, length, _ = query.shape
    inputs = [_flat(query), key, value, None, lengths, bias]
    while inputs[-1] is None:
        inputs.pop()
    out = torch.onnx.ops.symbolic(
        "com.microsoft::MultiHeadAttention",
        inputs,
        {"num_heads": heads, "scale": float(scale)},
        dtype=query.dtype,
        shape=(rows, length, heads * value_size),
        version=1,
    )
    return out.view(rows, length, heads, value_size)


def _flat(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).reshape(heads.shape[0], heads.shape[2], -1)


@dataclass(slots=True)
class Scene:
    """What attention needs to know of the graph being traced."""

    lengths: Tensor | None = None  # real tokens of each row, for self-attention over a padded batch
    source_lengths: Tensor | None = None  # the same for the source that cross-attention looks at
    past: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # cached keys and values, a pair per layer
    cross: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    last: Tensor | None = None
    total: Tensor | None = None
    present: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    held: dict[str, Tensor] = field(default_factory=dict)  # states that are swapped whole, by name: as they were
    left: dict[str, Tensor] = field(default_factory=dict)  # and as this step leaves them
    lengths_now: Tensor | None = None  # tokens of this step in each row
    fresh: Tensor | None = None  # keys just handed through the cache: how self-attention over a cache is recognised


_scenes: list[Scene] = []


@contextmanager
def playing(scene: Scene) -> Iterator[Scene]:
    _scenes.append(scene)
    try:
        yield scene
    finally:
        _scenes.pop()


def scene() -> Scene | None:
    """Of the graph being traced; none while a model runs eagerly."""
    return _scenes[-1] if _scenes else None


@contextmanager
def with_fused_attention(model: PreTrainedModel) -> Iterator[None]:
    """While inside, the model's attention is ours; before and after, its own eager one."""
    _implement(model, _IMPLEMENTATION)
    try:
        with plain_parts(model):
            yield
    finally:
        _implement(model, "eager")


def _implement(model: PreTrainedModel, name: str) -> None:
    model.set_attn_implementation(name)
    for part in model.modules():  # a part that was given a config of its own is not reached by the call above
        config = getattr(part, "config", None)
        if config is not None and hasattr(config, "_attn_implementation"):
            config._attn_implementation = name


def _of_hugging_face(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    scene = _scenes[-1]
    scale = scaling if scaling is not None else query.shape[3] ** -0.5
    layer = getattr(module, "layer_idx", None)
    if key is scene.fresh:
        assert layer is not None
        assert scene.last is not None
        assert scene.total is not None
        out, scene.present[layer] = causal(
            query, key, value, scene.past[layer], last=scene.last, total=scene.total, scale=scale, bias=position_bias
        )
        return out, None
    if layer is not None and scene.cross and key is scene.cross[layer][0]:
        # the position bias that T5 hands to cross-attention is all zeros
        return across(query, key, value, scale=scale, lengths=scene.source_lengths), None
    bias = attention_mask if position_bias is None else position_bias
    return bidirectional(query, key, value, scale=scale, lengths=scene.lengths, bias=bias), None


def _no_mask(*_: Any, **__: Any) -> None:
    """Padding reaches the operators as lengths and causality is theirs, so no mask is ever built."""


AttentionInterface.register(_IMPLEMENTATION, _of_hugging_face)
AttentionMaskInterface.register(_IMPLEMENTATION, _no_mask)
