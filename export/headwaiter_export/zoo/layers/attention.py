"""Softmax attention: plain matrix products in training, one fused operator while a graph is traced."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from headwaiter_export.tracing import attention as fused
from headwaiter_export.zoo.layers.masks import MASK_BIAS, padding_mask

KeyValue = tuple[Tensor, Tensor]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    lengths: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Attend from `query` to `key` and `value`, [rows, heads, length, size] each; return [rows, length, heads · size].

    `lengths` [rows] is the number of valid keys of each row; `bias` is added to the scores.
    """
    scale = query.shape[3] ** -0.5 if scale is None else scale
    if fused.trace_context() is not None:
        return fused.bidirectional_attention(query, key, value, scale=scale, lengths=lengths, bias=bias).flatten(2)
    scores = scale * query @ key.transpose(2, 3)
    if bias is not None:
        scores = scores + bias
    if lengths is not None:
        scores = scores.masked_fill(padding_mask(lengths, key.shape[2])[:, None, None], MASK_BIAS)
    return merge_heads(scores.softmax(-1) @ value)


def split_heads(states: Tensor, heads: int) -> Tensor:
    """Reshape [rows, length, heads · size] to [rows, heads, length, size]."""
    return states.unflatten(2, (heads, -1)).transpose(1, 2)


def merge_heads(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(2)


class AttentionProjections(nn.Module):
    """The query, key, value and output projections of multi-head attention."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))

    def project_queries(self, states: Tensor) -> Tensor:
        return split_heads(self.query(states), self.heads)

    def project_keys_values(self, states: Tensor) -> KeyValue:
        return split_heads(self.key(states), self.heads), split_heads(self.value(states), self.heads)

    def project_output(self, attended: Tensor) -> Tensor:
        states: Tensor = self.out(attended)
        return states


class SelfAttention(AttentionProjections):
    """Vaswani et al. 2017: every token attends to every valid token of its row."""

    def forward(self, states: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        return self.project_output(
            attend(self.project_queries(states), *self.project_keys_values(states), lengths=lengths, bias=bias)
        )


class CrossAttention(AttentionProjections):
    """Queries from one sequence, keys and values from another. While a decoder is traced, keys and values come from the
    trace context, because the encoder's graph computes them once."""

    def __init__(self, size: int, heads: int, layer: int | None = None) -> None:
        super().__init__(size, heads)
        self.layer = layer

    def forward(self, states: Tensor, memory: Tensor, lengths: Tensor | None = None) -> Tensor:
        trace_context, query = fused.trace_context(), self.project_queries(states)
        if trace_context is not None and trace_context.cross and self.layer is not None:
            keys_values, scale = trace_context.cross[self.layer], query.shape[3] ** -0.5
            attended = fused.cross_attention(
                query, *keys_values, scale=scale, lengths=trace_context.source_lengths
            ).flatten(2)
        else:
            attended = attend(query, *self.project_keys_values(memory), lengths=lengths)
        return self.project_output(attended)


class PositionalAttention(AttentionProjections):
    """Carion et al. 2020: position embeddings are added to queries and keys but not to values."""

    def forward(self, states: Tensor, positions: Tensor, memory: Tensor, memory_positions: Tensor) -> Tensor:
        key, value = (
            split_heads(self.key(memory + memory_positions), self.heads),
            split_heads(self.value(memory), self.heads),
        )
        return self.project_output(attend(self.project_queries(states + positions), key, value))


class CausalAttention(AttentionProjections):
    """Tokens attend to themselves and to earlier tokens and, while traced, to the KV cache.

    No token attends to `masked_keys` [rows, length]. The fused operator over a cache has no key mask, so each key then
    carries one extra number that the matching extra number of the queries turns into a masking score; the heads of the
    cache must have that size.
    """

    def __init__(self, size: int, heads: int, layer: int) -> None:
        super().__init__(size, heads)
        self.layer = layer

    def forward(self, states: Tensor, masked_keys: Tensor | None = None) -> Tensor:
        query, (key, value) = self.project_queries(states), self.project_keys_values(states)
        size, trace_context = query.shape[3], fused.trace_context()
        scores = None if masked_keys is None else (MASK_BIAS * masked_keys.to(key.dtype))[:, None]
        if trace_context is None:
            bias = causal_bias(states.shape[1])
            return self.project_output(
                attend(query, key, value, bias=bias if scores is None else bias + scores[:, None])
            )
        if scores is not None:
            query, value = pad(query, (0, 1), value=1.0), pad(value, (0, 1))
            key = torch.cat([key, scores[..., None].expand(-1, self.heads, -1, -1)], 3)
        assert trace_context.last is not None
        assert trace_context.total is not None
        attended, trace_context.present[self.layer] = fused.causal_attention(
            query,
            key,
            value,
            trace_context.past[self.layer],
            last=trace_context.last,
            total=trace_context.total,
            scale=size**-0.5,
        )
        return self.project_output(attended[..., :size].flatten(2))


def causal_bias(length: int) -> Tensor:
    """Bias [length, length] that masks later positions."""
    return torch.full((length, length), MASK_BIAS).triu(1)
