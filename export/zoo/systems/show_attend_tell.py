from __future__ import annotations

from typing import Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from export.zoo.data.scenes import SceneCaptions
from export.zoo.kit.additive import NO_OPERATOR, AdditiveAttention
from export.zoo.kit.attention import Pair
from export.zoo.kit.images import STRIDE, Stem
from export.zoo.kit.recurrent import LstmCell
from export.zoo.recipe import Recipe
from export.zoo.recurrent import Reading, RecurrentCaptioner, RecurrentSizes, States
from export.zoo.registry import system


class ShowAttendTellSizes(RecurrentSizes):
    image: PositiveInt = 64

    @model_validator(mode="after")
    def _places_fit(self) -> Self:
        if self.image % STRIDE:
            raise ValueError(f"image is {self.image}, which {STRIDE} does not divide")
        return self


@system(
    "show-attend-tell",
    group="captioning",
    paper="Xu et al. 2015, Show, Attend and Tell: Neural Image Caption Generation with Visual Attention",
    recipe=Recipe(
        SceneCaptions, bar=0.9, steps=1200, rate=2e-3, options={"image": 48, "shapes": 2}, sizes={"size": 64}
    ),
)
class ShowAttendTell(RecurrentCaptioner):
    """Convolutions leave a vector at each place of the image; before each word, an LSTM looks where it needs to. Places
    are told where they are, which the paper's deep network knows from its borders."""

    Sizes = ShowAttendTellSizes
    unfusable = NO_OPERATOR

    def __init__(self, sizes: ShowAttendTellSizes) -> None:
        super().__init__(sizes)
        size = sizes.size
        self.features = Stem(size)
        self.positions = nn.Parameter(torch.randn((sizes.image // STRIDE) ** 2, size) * 0.02)
        self.norm = nn.LayerNorm(size)
        self.first = nn.Linear(size, 2 * size)
        self.attention = AdditiveAttention(size, size, size)
        self.gate = nn.Linear(size, size)
        self.words = nn.Embedding(sizes.vocabulary, size)
        self.cell = LstmCell(2 * size, size)
        self.from_hidden, self.from_context = nn.Linear(size, size), nn.Linear(size, size)
        self.head = nn.Linear(size, sizes.vocabulary)

    def held(self) -> dict[str, tuple[int, ...]]:
        return {"hidden": (self.sizes.size,), "cell": (self.sizes.size,)}

    def crossing(self) -> AdditiveAttention:
        return self.attention

    def encode(self, pixels: Tensor) -> Reading:
        """Writing begins with what the places are on average."""
        places = self.norm(self.features(pixels) + self.positions)
        hidden, cell = self.first(places.mean(1)).tanh().chunk(2, 1)
        return Reading({"hidden": hidden, "cell": cell}, places)

    def step(self, words: Tensor, states: States, seen: Pair | None, lengths: Tensor | None) -> tuple[Tensor, States]:
        assert seen is not None
        written = self.words(words)
        context = self.gate(states["hidden"]).sigmoid() * self.attention(states["hidden"], seen, lengths)
        hidden, cell = self.cell(torch.cat([written, context], 1), states["hidden"], states["cell"])
        answer = written + self.from_hidden(hidden) + self.from_context(context)
        return answer, {"hidden": hidden, "cell": cell}
