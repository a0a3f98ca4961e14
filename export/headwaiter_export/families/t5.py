from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwaiter_export.families.decoder import DecoderDimensions, split_heads
from headwaiter_export.families.family import family
from headwaiter_export.families.text_decoder import Translator
from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.tracing.cache import run_decoder
from headwaiter_export.tracing.graph import OPSET
from headwaiter_export.tracing.patching import patched_attribute

_DEFAULT_MAX_LENGTH = 512  # relative positions are unbounded; T5 was trained on this length


@family("t5")
class T5(Translator):
    """Relative positions are a bias on the attention scores, looked up by distance and computed for each row."""

    transformers_class = "T5ForConditionalGeneration"

    def dimensions(self) -> DecoderDimensions:
        return DecoderDimensions(self.config.num_decoder_layers, self.config.num_heads, self.config.d_kv)

    def vocabulary(self) -> int:
        return int(self.model.lm_head.out_features)

    def limits(self) -> dict[str, int]:
        limit = int(getattr(self.config, "n_positions", None) or _DEFAULT_MAX_LENGTH)
        return {"source": limit, "max_length": limit}

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        encoder = self.model.encoder
        length = inputs["tokens"].shape[1]
        indices = torch.arange(length)
        bias = self._position_bias(encoder, indices[None, :] - indices[:, None])
        with patched_attribute(_position_bias_attention(encoder), "compute_bias", lambda *_, **__: bias[None]):
            hidden: Tensor = encoder(input_ids=inputs["tokens"]).last_hidden_state
        return hidden

    def cross(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.model.decoder.block[layer].layer[1].EncDecAttention
        return split_heads(attention.k(hidden), self.config.d_kv), split_heads(attention.v(hidden), self.config.d_kv)

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:
        decoder = self.model.decoder
        bias = self._position_bias(decoder, _all_positions(trace_context) - positions[:, :, None])
        with patched_attribute(_position_bias_attention(decoder), "compute_bias", lambda *_, **__: bias):
            return run_decoder(decoder, inputs["tokens"], trace_context, self.config.d_model)

    def logits(self, last: Tensor) -> Tensor:
        if self.config.scale_decoder_outputs:
            last = last * self.config.d_model**-0.5
        return functional.linear(last, self.model.lm_head.weight)

    def _position_bias(self, stack: Any, distances: Tensor) -> Tensor:
        """Return the bias [..., heads, queries, keys] for distances [..., queries, keys].

        Distances beyond `relative_attention_max_distance` share one bias.
        """
        attention = _position_bias_attention(stack)
        max_distance = self.config.relative_attention_max_distance
        buckets = attention._relative_position_bucket(
            torch.arange(-max_distance, max_distance + 1),
            bidirectional=not attention.is_decoder,
            num_buckets=self.config.relative_attention_num_buckets,
            max_distance=max_distance,
        )
        bias_by_distance = attention.relative_attention_bias(buckets)
        bias = functional.embedding(distances.clamp(-max_distance, max_distance) + max_distance, bias_by_distance)
        return bias.movedim(-1, -3)


def _position_bias_attention(stack: Any) -> Any:
    """Return the attention of the first layer, which holds the bias for all layers."""
    return stack.block[0].layer[0].SelfAttention


def _all_positions(trace_context: TraceContext) -> Tensor:
    """Return the positions 0 … total-1 [1, 1, total]; `total` is known only at run time."""
    assert trace_context.total is not None
    positions = torch.onnx.ops.symbolic(
        "Range",
        [torch.tensor(0), trace_context.total.long(), torch.tensor(1)],
        dtype=torch.int64,
        shape=(trace_context.past[0][0].shape[2],),  # placeholder
        version=OPSET,
    )
    return positions[None, None]
