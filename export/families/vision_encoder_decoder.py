from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from export.attention import Scene
from export.cache import hidden_states
from export.decoding import Geometry, heads_of
from export.errors import SourceError
from export.family import family
from export.graph import Port
from export.runtime import Arrays
from export.words import WordDecoder, first

_ENCODERS = ("vit", "deit", "swin")


@family("vision-encoder-decoder")
class VisionEncoderDecoder(WordDecoder):
    task = "captioning"
    head = "VisionEncoderDecoderModel"
    reads_images = True

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        encoder, decoder = self.config.encoder.model_type, self.config.decoder.model_type
        if encoder not in _ENCODERS or decoder != "gpt2":
            raise SourceError(
                f"A captioner of {encoder} and {decoder} is not known; known are {', '.join(_ENCODERS)} with gpt2."
            )

    def geometry(self) -> Geometry:
        config = self.config.decoder
        return Geometry(config.n_layer, config.n_head, config.n_embd // config.n_head)

    def vocabulary(self) -> int:
        return int(self.config.decoder.vocab_size)

    def limits(self) -> dict[str, int]:
        height, width = self._image_size()
        return {"height": height, "width": width, "room": self.config.decoder.n_positions}

    def source_ports(self) -> dict[str, Port]:
        return {"pixels": Port(torch.float32, ("rows", 3, *self._image_size()))}

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        hidden: Tensor = self.model.encoder(pixel_values=inputs["pixels"]).last_hidden_state
        return self.model.enc_to_dec_proj(hidden) if hasattr(self.model, "enc_to_dec_proj") else hidden

    def cross(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.model.decoder.transformer.h[layer].crossattention
        key, value = attention.c_attn(hidden).split(attention.split_size, dim=2)
        return heads_of(key, attention.head_dim), heads_of(value, attention.head_dim)

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:
        decoder, width = self.model.decoder.transformer, self.config.decoder.n_embd
        return hidden_states(decoder, inputs["tokens"], scene, width, position_ids=positions)

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.decoder.lm_head.weight)

    def original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        answer: Tensor = self.model(pixel_values=source["pixels"], decoder_input_ids=tokens, use_cache=False).logits
        return answer

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {"pixels": rng.standard_normal((rows, 3, *self._image_size())).astype(np.float32)}

    def start(self) -> tuple[int, ...]:
        generation = self.model.generation_config
        return (
            int(first(generation.decoder_start_token_id, self.config.decoder_start_token_id, generation.bos_token_id)),
        )

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:
        return [[*self.start(), *prompt] for prompt in super().prompts(rows, rng)]

    def _image_size(self) -> tuple[int, int]:
        size = self.config.encoder.image_size
        return tuple(size) if isinstance(size, list | tuple) else (size, size)
