"""The KV cache as graph inputs and outputs, in the form that Hugging Face decoders accept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, EncoderDecoderCache

from export.attention import Scene


class PassingCache(Cache):
    """Hands new keys and values through: the fused operator itself writes them into the past."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.layers: list[Any] = []

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.scene.fresh = key
        return key, value

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0  # positions are given per row; a decoder must not derive them from here

    def __len__(self) -> int:
        return len(self.scene.past)


class FixedCache(Cache):
    """Cross-attention keys and values, computed once by the encoder graph."""

    def __init__(self, scene: Scene) -> None:
        self.layers = [SimpleNamespace(keys=key, values=value) for key, value in scene.cross]

    def get_seq_length(self, *_: Any, **__: Any) -> Any:
        return self.layers[0].keys.shape[2]

    def __len__(self) -> int:
        return len(self.layers)


def hidden_states(decoder: Any, tokens: Tensor, scene: Scene, width: int, **given: Tensor) -> Tensor:
    """What a Hugging Face decoder makes of tokens [rows, steps] over the scene's cache: [rows, steps, width].

    A decoder with cross-attention is handed the states of an encoder all the same; it does not look at them, since
    their keys and values are in the cache.
    """
    if scene.cross:
        given["encoder_hidden_states"] = scene.cross[0][0].new_zeros(tokens.shape[0], 1, width)
    hidden: Tensor = decoder(
        input_ids=tokens, past_key_values=cache_of(scene), use_cache=True, **given
    ).last_hidden_state
    return hidden


def cache_of(scene: Scene) -> Cache:
    own = PassingCache(scene)
    if not scene.cross:
        return own
    both = EncoderDecoderCache.__new__(EncoderDecoderCache)  # its constructor insists on caches of transformers' own
    both.self_attention_cache, both.cross_attention_cache = own, FixedCache(scene)
    both.is_updated = dict.fromkeys(range(len(scene.cross)), True)
    return both
