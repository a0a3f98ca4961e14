from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from export.attention import Scene
from export.cache import hidden_states
from export.decoding import Geometry, heads_of
from export.family import family
from export.patching import replaced
from export.words import Translator


class BartLike(Translator):
    """Encoder-decoders laid out as BART: Marian, BART, and what follows them."""

    position_offset: ClassVar[int] = 0

    def geometry(self) -> Geometry:
        heads = self.config.decoder_attention_heads
        return Geometry(self.config.decoder_layers, heads, self.config.d_model // heads)

    def vocabulary(self) -> int:
        return int(self.model.lm_head.out_features)

    def limits(self) -> dict[str, int]:
        return {"source": self.config.max_position_embeddings, "room": self.config.max_position_embeddings}

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        hidden: Tensor = self.model.get_encoder()(input_ids=inputs["tokens"]).last_hidden_state
        return hidden

    def cross(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.model.get_decoder().layers[layer].encoder_attn
        key, value = attention.k_proj(hidden), attention.v_proj(hidden)
        return heads_of(key, attention.head_dim), heads_of(value, attention.head_dim)

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:
        decoder = self.model.get_decoder()
        table = decoder.embed_positions.weight
        embedded = functional.embedding(positions + self.position_offset, table)
        with replaced(decoder.embed_positions, "forward", lambda *_, **__: embedded):
            return hidden_states(decoder, inputs["tokens"], scene, self.config.d_model)

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.lm_head.weight, self.model.final_logits_bias[0])


@family("bart")
class Bart(BartLike):
    head = "BartForConditionalGeneration"
    position_offset = 2
