from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from export.attention import Scene
from export.cache import hidden_states
from export.decoding import Geometry, heads_of
from export.family import family
from export.graph import OPSET
from export.patching import replaced
from export.words import Translator

_LIMIT = 512  # positions are relative and have no end; this is what T5 was trained on


@family("t5")
class T5(Translator):
    """Positions are a bias on the attention scores, looked up by distance; rows differ in where they stand."""

    head = "T5ForConditionalGeneration"

    def geometry(self) -> Geometry:
        return Geometry(self.config.num_decoder_layers, self.config.num_heads, self.config.d_kv)

    def vocabulary(self) -> int:
        return int(self.model.lm_head.out_features)

    def limits(self) -> dict[str, int]:
        limit = int(getattr(self.config, "n_positions", None) or _LIMIT)
        return {"source": limit, "room": limit}

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        encoder = self.model.encoder
        length = inputs["tokens"].shape[1]
        places = torch.arange(length)
        bias = self._bias(encoder, places[None, :] - places[:, None])
        with replaced(_biased(encoder), "compute_bias", lambda *_, **__: bias[None]):
            hidden: Tensor = encoder(input_ids=inputs["tokens"]).last_hidden_state
        return hidden

    def cross(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.model.decoder.block[layer].layer[1].EncDecAttention
        return heads_of(attention.k(hidden), self.config.d_kv), heads_of(attention.v(hidden), self.config.d_kv)

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:
        decoder = self.model.decoder
        bias = self._bias(decoder, _all_places(scene) - positions[:, :, None])
        with replaced(_biased(decoder), "compute_bias", lambda *_, **__: bias):
            return hidden_states(decoder, inputs["tokens"], scene, self.config.d_model)

    def logits(self, last: Tensor) -> Tensor:
        if self.config.scale_decoder_outputs:
            last = last * self.config.d_model**-0.5
        return functional.linear(last, self.model.lm_head.weight)

    def _bias(self, stack: Any, distances: Tensor) -> Tensor:
        """[..., heads, queries, keys] for distances [..., queries, keys]; beyond the largest, all are alike."""
        attention = _biased(stack)
        largest = self.config.relative_attention_max_distance
        buckets = attention._relative_position_bucket(
            torch.arange(-largest, largest + 1),
            bidirectional=not attention.is_decoder,
            num_buckets=self.config.relative_attention_num_buckets,
            max_distance=largest,
        )
        by_distance = attention.relative_attention_bias(buckets)
        bias = functional.embedding(distances.clamp(-largest, largest) + largest, by_distance)
        return bias.movedim(-1, -3)


def _biased(stack: Any) -> Any:
    """The first layer's attention holds the bias for all."""
    return stack.block[0].layer[0].SelfAttention


def _all_places(scene: Scene) -> Tensor:
    """0 … total-1: how far the longest row reaches is known at run time only."""
    assert scene.total is not None
    places = torch.onnx.ops.symbolic(
        "Range",
        [torch.tensor(0), scene.total.long(), torch.tensor(1)],
        dtype=torch.int64,
        shape=(scene.past[0][0].shape[2],),  # a stand-in
        version=OPSET,
    )
    return places[None, None]
