from __future__ import annotations

import numpy as np
from torch import Tensor
from torch.nn import functional

from export.attention import Scene
from export.cache import hidden_states
from export.decoding import Geometry
from export.family import family
from export.runtime import Arrays
from export.words import WordDecoder


@family("gpt2")
class Gpt2(WordDecoder):
    task = "generation"
    head = "GPT2LMHeadModel"

    def geometry(self) -> Geometry:
        return Geometry(self.config.n_layer, self.config.n_head, self.config.n_embd // self.config.n_head)

    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    def limits(self) -> dict[str, int]:
        return {"room": self.config.n_positions}

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:
        return hidden_states(
            self.model.transformer, inputs["tokens"], scene, self.config.n_embd, position_ids=positions
        )

    def logits(self, last: Tensor) -> Tensor:
        return functional.linear(last, self.model.lm_head.weight)

    def original(self, source: dict[str, Tensor], tokens: Tensor) -> Tensor:  # noqa: ARG002
        answer: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return answer

    def sample_source(self, rows: int, length: int, rng: np.random.Generator) -> Arrays:  # noqa: ARG002
        return {}
