from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from headwaiter_export.families.decoder import DecoderDimensions, split_heads
from headwaiter_export.families.family import family
from headwaiter_export.families.text_decoder import Translator
from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.tracing.cache import run_decoder
from headwaiter_export.tracing.patching import patched_attribute


class BartLike(Translator):
    """Encoder-decoders with the module layout of BART, such as Marian."""

    position_offset: ClassVar[int] = 0

    def dimensions(self) -> DecoderDimensions:
        heads = self.config.decoder_attention_heads
        return DecoderDimensions(self.config.decoder_layers, heads, self.config.d_model // heads)

    def vocabulary(self) -> int:
        return int(self.model.lm_head.out_features)

    def limits(self) -> dict[str, int]:
        return {"source": self.config.max_position_embeddings, "max_length": self.config.max_position_embeddings}

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        hidden: Tensor = self.model.get_encoder()(input_ids=inputs["tokens"]).last_hidden_state
        return hidden

    def cross(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.model.get_decoder().layers[layer].encoder_attn
        key, value = attention.k_proj(hidden), attention.v_proj(hidden)
        return split_heads(key, attention.head_dim), split_heads(value, attention.head_dim)

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:
        decoder = self.model.get_decoder()
        position_table = decoder.embed_positions.weight
        position_embeddings = functional.embedding(positions + self.position_offset, position_table)
        with patched_attribute(decoder.embed_positions, "forward", lambda *_, **__: position_embeddings):
            return run_decoder(decoder, inputs["tokens"], trace_context, self.config.d_model)

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.lm_head.weight, self.model.final_logits_bias[0])


@family("bart")
class Bart(BartLike):
    transformers_class = "BartForConditionalGeneration"
    position_offset = 2
