from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headwaiter_export.arrays import Arrays
from headwaiter_export.errors import SourceError
from headwaiter_export.families.decoder import DecoderDimensions, split_heads
from headwaiter_export.families.family import family
from headwaiter_export.families.text_decoder import TextDecoderFamily, first_not_none
from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.tracing.cache import run_decoder
from headwaiter_export.tracing.graph import TensorSpec

_ENCODERS = ("vit", "deit", "swin")


@family("vision-encoder-decoder")
class VisionEncoderDecoder(TextDecoderFamily):
    task = "captioning"
    transformers_class = "VisionEncoderDecoderModel"
    reads_images = True

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        encoder, decoder = self.config.encoder.model_type, self.config.decoder.model_type
        if encoder not in _ENCODERS or decoder != "gpt2":
            raise SourceError(
                f"A captioning model of {encoder} and {decoder} is not supported; supported encoders are "
                f"{', '.join(_ENCODERS)}, with the decoder gpt2."
            )

    def dimensions(self) -> DecoderDimensions:
        config = self.config.decoder
        return DecoderDimensions(config.n_layer, config.n_head, config.n_embd // config.n_head)

    def vocabulary(self) -> int:
        return int(self.config.decoder.vocab_size)

    def limits(self) -> dict[str, int]:
        height, width = self._image_size()
        return {"height": height, "width": width, "max_length": self.config.decoder.n_positions}

    def encoder_inputs(self) -> dict[str, TensorSpec]:
        return {"pixels": TensorSpec(torch.float32, ("rows", 3, *self._image_size()))}

    def encode(self, inputs: dict[str, Tensor]) -> Tensor:
        hidden: Tensor = self.model.encoder(pixel_values=inputs["pixels"]).last_hidden_state
        return self.model.enc_to_dec_proj(hidden) if hasattr(self.model, "enc_to_dec_proj") else hidden

    def cross(self, layer: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.model.decoder.transformer.h[layer].crossattention
        key, value = attention.c_attn(hidden).split(attention.split_size, dim=2)
        return split_heads(key, attention.head_dim), split_heads(value, attention.head_dim)

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:
        decoder, width = self.model.decoder.transformer, self.config.decoder.n_embd
        return run_decoder(decoder, inputs["tokens"], trace_context, width, position_ids=positions)

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.decoder.lm_head.weight)

    def run_original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=source["pixels"], decoder_input_ids=tokens, use_cache=False).logits
        return logits

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {"pixels": rng.standard_normal((rows, 3, *self._image_size())).astype(np.float32)}

    def decoder_start_token_ids(self) -> tuple[int, ...]:
        generation = self.model.generation_config
        token_id = first_not_none(
            generation.decoder_start_token_id, self.config.decoder_start_token_id, generation.bos_token_id
        )
        return (int(token_id),)

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:
        return [[*self.decoder_start_token_ids(), *prompt] for prompt in super().prompts(rows, rng)]

    def _image_size(self) -> tuple[int, int]:
        size = self.config.encoder.image_size
        return tuple(size) if isinstance(size, list | tuple) else (size, size)
