from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from export.zoo.data.reversing import Reversing
from export.zoo.kit.additive import NO_OPERATOR, AdditiveAttention
from export.zoo.kit.attention import Pair
from export.zoo.kit.recurrent import GruCell, Maxout
from export.zoo.recipe import Recipe
from export.zoo.recurrent import Reading, RecurrentTranslator, RecurrentTranslatorSizes, States
from export.zoo.registry import system


@system(
    "bahdanau",
    group="before attention was all",
    paper="Bahdanau et al. 2014, Neural Machine Translation by Jointly Learning to Align and Translate",
    recipe=Recipe(Reversing, bar=0.98, steps=2000, rate=3e-3, sizes={"size": 64}),
)
class Bahdanau(RecurrentTranslator):
    """Read both ways; before each word, the decoder looks where it needs to."""

    unfusable = NO_OPERATOR

    def __init__(self, sizes: RecurrentTranslatorSizes) -> None:
        super().__init__(sizes, partial(nn.GRU, bidirectional=True))
        size = sizes.size
        self.first = nn.Linear(size, size)
        self.attention = AdditiveAttention(size, 2 * size, size)
        self.cell = GruCell(3 * size, size)
        self.readout = Maxout(4 * size, size)
        self.head = nn.Linear(size, sizes.vocabulary)

    def held(self) -> dict[str, tuple[int, ...]]:
        return {"hidden": (self.sizes.size,)}

    def crossing(self) -> AdditiveAttention:
        return self.attention

    def encode(self, tokens: Tensor, lengths: Tensor) -> Reading:
        """Writing begins with what reading backwards ended with."""
        places, (last,) = self.reader(self.read(tokens), lengths)
        return Reading({"hidden": self.first(last[:, 1]).tanh()}, places)

    def step(self, words: Tensor, states: States, seen: Pair | None, lengths: Tensor | None) -> tuple[Tensor, States]:
        assert seen is not None
        written = self.written(words)
        context = self.attention(states["hidden"], seen, lengths)
        hidden = self.cell(torch.cat([written, context], 1), states["hidden"])
        return self.readout(torch.cat([hidden, written, context], 1)), {"hidden": hidden}
