from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn import functional

from headwaiter_export.arrays import Arrays
from headwaiter_export.families.decoder import DecoderDimensions
from headwaiter_export.families.family import family
from headwaiter_export.families.text_decoder import TextDecoderFamily
from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.tracing.cache import run_decoder


@family("gpt2")
class Gpt2(TextDecoderFamily):
    task = "generation"
    transformers_class = "GPT2LMHeadModel"

    def dimensions(self) -> DecoderDimensions:
        return DecoderDimensions(self.config.n_layer, self.config.n_head, self.config.n_embd // self.config.n_head)

    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    def limits(self) -> dict[str, int]:
        return {"max_length": self.config.n_positions}

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:
        return run_decoder(
            self.model.transformer, inputs["tokens"], trace_context, self.config.n_embd, position_ids=positions
        )

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.lm_head.weight)

    def run_original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:  # noqa: ARG002
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {}
