"""Hugging Face cache classes that expose the KV cache as graph inputs and outputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache

from headwaiter_export.tracing.attention import TraceContext


class PassthroughCache(Cache):
    """Returns new keys and values unchanged: the fused operator appends them to the past."""

    def __init__(self, trace_context: TraceContext) -> None:
        self.trace_context = trace_context
        self.layers: list[Any] = []

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.trace_context.pending_key = key
        return key, value

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0  # positions are passed per row; the decoder must not derive them from the cache

    def __len__(self) -> int:
        return len(self.trace_context.past)


class CrossAttentionCache(Cache):
    """Cross-attention keys and values, computed by the encoder graph."""

    def __init__(self, trace_context: TraceContext) -> None:
        self.layers = [SimpleNamespace(keys=key, values=value) for key, value in trace_context.cross]

    def get_seq_length(self, *_: Any, **__: Any) -> Any:
        return self.layers[0].keys.shape[2]

    def __len__(self) -> int:
        return len(self.layers)


def run_decoder(decoder: Any, tokens: Tensor, trace_context: TraceContext, width: int, **kwargs: Tensor) -> Tensor:
    """Run a Hugging Face decoder on tokens [rows, steps] with the cache of the trace context.

    Returns hidden states [rows, steps, width]. A decoder with cross-attention requires encoder states as an argument;
    zeros are passed, because it reads the keys and values of the source from the cache.
    """
    if trace_context.cross:
        kwargs["encoder_hidden_states"] = trace_context.cross[0][0].new_zeros(tokens.shape[0], 1, width)
    hidden: Tensor = decoder(
        input_ids=tokens, past_key_values=build_cache(trace_context), use_cache=True, **kwargs
    ).last_hidden_state
    return hidden


def build_cache(trace_context: TraceContext) -> Cache:
    self_attention_cache = PassthroughCache(trace_context)
    if not trace_context.cross:
        return self_attention_cache
    cache = EncoderDecoderCache.__new__(EncoderDecoderCache)  # the constructor accepts only caches of transformers
    cache.self_attention_cache, cache.cross_attention_cache = self_attention_cache, CrossAttentionCache(trace_context)
    cache.is_updated = dict.fromkeys(range(len(trace_context.cross)), True)
    return cache
