from __future__ import annotations

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.data.reversing import Reversing
from headwaiter_export.zoo.layers.attention import KeyValue
from headwaiter_export.zoo.layers.recurrent import GruCell, Maxout
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.recurrent import EncoderOutput, RecurrentTranslator, RecurrentTranslatorSizes, States
from headwaiter_export.zoo.registry import architecture


@architecture(
    "rnn-context",
    group="recurrent sequence models",
    paper="Cho et al. 2014, Learning Phrase Representations using RNN Encoder–Decoder",
    recipe=Recipe(Reversing, target=0.9, steps=1500, learning_rate=3e-3, tier=2, options={"length": 6}),
)
class RnnContext(RecurrentTranslator):
    """The source is summarized in one vector that enters every step and every output."""

    def __init__(self, sizes: RecurrentTranslatorSizes) -> None:
        super().__init__(sizes, nn.GRU)
        size = sizes.size
        self.summary, self.first = nn.Linear(size, size), nn.Linear(size, size)
        self.cell = GruCell(2 * size, size)
        self.readout = Maxout(3 * size, size)
        self.head = nn.Linear(size, sizes.vocabulary)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"hidden": (self.sizes.size,), "context": (self.sizes.size,)}

    def encode(self, tokens: Tensor, lengths: Tensor) -> EncoderOutput:
        _, (last,) = self.reader(self.read(tokens), lengths)
        context = self.summary(last[:, 0]).tanh()
        return EncoderOutput({"hidden": self.first(context).tanh(), "context": context})

    def step(
        self,
        tokens: Tensor,
        states: States,
        keys_values: KeyValue | None,  # noqa: ARG002
        lengths: Tensor | None,  # noqa: ARG002
    ) -> tuple[Tensor, States]:
        embeddings, context = self.written(tokens), states["context"]
        hidden = self.cell(torch.cat([embeddings, context], 1), states["hidden"])
        return self.readout(torch.cat([hidden, embeddings, context], 1)), {"hidden": hidden, "context": context}
