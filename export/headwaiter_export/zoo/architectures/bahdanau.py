from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.data.reversing import Reversing
from headwaiter_export.zoo.layers.additive_attention import UNFUSABLE_REASON, AdditiveAttention
from headwaiter_export.zoo.layers.attention import KeyValue
from headwaiter_export.zoo.layers.recurrent import GruCell, Maxout
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.recurrent import EncoderOutput, RecurrentTranslator, RecurrentTranslatorSizes, States
from headwaiter_export.zoo.registry import architecture


@architecture(
    "bahdanau",
    group="recurrent sequence models",
    paper="Bahdanau et al. 2014, Neural Machine Translation by Jointly Learning to Align and Translate",
    recipe=Recipe(Reversing, target=0.98, steps=2000, learning_rate=3e-3, sizes={"size": 64}),
)
class Bahdanau(RecurrentTranslator):
    """Bidirectional encoder; the decoder attends to the source before each token."""

    no_fused_operator_reason = UNFUSABLE_REASON

    def __init__(self, sizes: RecurrentTranslatorSizes) -> None:
        super().__init__(sizes, partial(nn.GRU, bidirectional=True))
        size = sizes.size
        self.first = nn.Linear(size, size)
        self.attention = AdditiveAttention(size, 2 * size, size)
        self.cell = GruCell(3 * size, size)
        self.readout = Maxout(4 * size, size)
        self.head = nn.Linear(size, sizes.vocabulary)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"hidden": (self.sizes.size,)}

    def cross_attention(self) -> AdditiveAttention:
        return self.attention

    def encode(self, tokens: Tensor, lengths: Tensor) -> EncoderOutput:
        """The initial state is computed from the final state of the backward direction."""
        memory, (last,) = self.reader(self.read(tokens), lengths)
        return EncoderOutput({"hidden": self.first(last[:, 1]).tanh()}, memory)

    def step(
        self, tokens: Tensor, states: States, keys_values: KeyValue | None, lengths: Tensor | None
    ) -> tuple[Tensor, States]:
        assert keys_values is not None
        embeddings = self.written(tokens)
        context = self.attention(states["hidden"], keys_values, lengths)
        hidden = self.cell(torch.cat([embeddings, context], 1), states["hidden"])
        return self.readout(torch.cat([hidden, embeddings, context], 1)), {"hidden": hidden}
