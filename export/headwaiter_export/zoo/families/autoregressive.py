"""Export families of text models: an optional encoder and a decoder over a KV cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwaiter.package.manifest import DecodingDefaults
from headwaiter_export.arrays import Arrays
from headwaiter_export.families import text_decoder
from headwaiter_export.families.decoder import DecoderDimensions, StateSpec
from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.tracing.graph import TensorSpec
from headwaiter_export.zoo.families.base import ZooFamily


class AutoregressiveModel(ZooFamily, text_decoder.TextDecoderFamily):
    def dimensions(self) -> DecoderDimensions:
        return DecoderDimensions(self.config.layers, self.config.heads, self.config.size // self.config.heads)

    def states(self) -> dict[str, StateSpec]:
        replaced = {
            name: StateSpec(TensorSpec(torch.float32, ("rows", *shape)), "replace")
            for name, shape in self.model.state_shapes().items()
        }
        return replaced or super().states()

    def vocabulary(self) -> int:
        return int(self.config.vocabulary)

    def limits(self) -> dict[str, int]:
        return {"max_length": self.config.room}

    def decoder_start_token_ids(self) -> tuple[int, ...]:
        return self.decoding().decoder_start_token_ids

    def decoding(self) -> DecodingDefaults:
        configured = self.checkpoint.decoding
        return configured or DecodingDefaults(
            decoder_start_token_ids=(1,), eos_token_ids=(2,), max_new_tokens=self.config.room - 1
        )

    def cross(self, layer: int, hidden: Any) -> tuple[Tensor, Tensor]:
        keys_values: tuple[Tensor, Tensor] = self.model.cross_attentions()[layer].project_keys_values(hidden)
        return keys_values

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:  # noqa: ARG002
        states: Tensor = self.model.decode(inputs["tokens"], positions, None, None)
        return states

    def logits(self, last: Tensor) -> Tensor:
        logits: Tensor = self.model.logits(last)
        return logits

    def run_original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:
        memory = self.encode(source) if source else None
        logits: Tensor = self.model(tokens, memory, source.get("lengths"))
        return logits


class Generator(AutoregressiveModel):
    def decoder_start_token_ids(self) -> tuple[int, ...]:
        return ()

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {}


class EncoderDecoder(AutoregressiveModel):
    """Decoding starts from the start token alone; there is no prompt."""

    def prompts(self, rows: int, rng: np.random.Generator) -> list[list[int]]:  # noqa: ARG002
        return [list(self.decoder_start_token_ids())] * rows


class Translator(EncoderDecoder, text_decoder.Translator):
    def limits(self) -> dict[str, int]:
        return {"source": self.config.source, "max_length": self.config.room}

    def source_vocabulary(self) -> int:
        return self.vocabulary()

    def encode(self, inputs: dict[str, Tensor]) -> Any:
        return self.model.encode(inputs["tokens"], inputs["lengths"])


class Captioner(EncoderDecoder):
    reads_images = True

    def limits(self) -> dict[str, int]:
        return {"height": self.config.image, "width": self.config.image, "max_length": self.config.room}

    def encoder_inputs(self) -> dict[str, TensorSpec]:
        return {"pixels": TensorSpec(torch.float32, ("rows", 3, self.config.image, self.config.image))}

    def encode(self, inputs: dict[str, Tensor]) -> Any:
        return self.model.encode(inputs["pixels"])

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> dict[str, Any]:  # noqa: ARG002
        return {"pixels": rng.standard_normal((rows, 3, self.config.image, self.config.image)).astype(np.float32)}
