from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.data.reversing import Reversing
from export.zoo.kit.attention import Pair
from export.zoo.kit.recurrent import GruCell, Maxout
from export.zoo.recipe import Recipe
from export.zoo.recurrent import Reading, RecurrentTranslator, RecurrentTranslatorSizes, States
from export.zoo.registry import system


@system(
    "rnn-context",
    group="before attention was all",
    paper="Cho et al. 2014, Learning Phrase Representations using RNN Encoder–Decoder",
    recipe=Recipe(Reversing, bar=0.9, steps=1500, rate=3e-3, tier=2, options={"length": 6}),
)
class RnnContext(RecurrentTranslator):
    """All that is known of the source is one vector, which goes into every step and every answer."""

    def __init__(self, sizes: RecurrentTranslatorSizes) -> None:
        super().__init__(sizes, nn.GRU)
        size = sizes.size
        self.summary, self.first = nn.Linear(size, size), nn.Linear(size, size)
        self.cell = GruCell(2 * size, size)
        self.readout = Maxout(3 * size, size)
        self.head = nn.Linear(size, sizes.vocabulary)

    def held(self) -> dict[str, tuple[int, ...]]:
        return {"hidden": (self.sizes.size,), "context": (self.sizes.size,)}

    def encode(self, tokens: Tensor, lengths: Tensor) -> Reading:
        _, (last,) = self.reader(self.read(tokens), lengths)
        context = self.summary(last[:, 0]).tanh()
        return Reading({"hidden": self.first(context).tanh(), "context": context})

    def step(
        self,
        words: Tensor,
        states: States,
        seen: Pair | None,  # noqa: ARG002
        lengths: Tensor | None,  # noqa: ARG002
    ) -> tuple[Tensor, States]:
        written, context = self.written(words), states["context"]
        hidden = self.cell(torch.cat([written, context], 1), states["hidden"])
        return self.readout(torch.cat([hidden, written, context], 1)), {"hidden": hidden, "context": context}
