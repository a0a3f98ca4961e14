from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from export.zoo.data.copying import Copying
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.mixers.running import RunningAttention
from export.zoo.kit.positions import Learned
from export.zoo.model import Generator
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes, WriterSizes


class PerformerLmSizes(WriterSizes):
    features: PositiveInt = 64  # random ones, of each query and key


@system(
    "performer-lm",
    group="cheaper attention",
    paper="Choromanski et al. 2020, Rethinking Attention with Performers",
    recipe=Recipe(Copying, bar=0.9, steps=4000, rate=2e-3, tier=2),
)
class PerformerLm(Generator):
    """What a row carries from step to step does not grow with its text."""

    Sizes: ClassVar[type[Sizes]] = PerformerLmSizes

    def __init__(self, sizes: PerformerLmSizes) -> None:
        super().__init__(sizes)
        self.words, self.positions = nn.Embedding(sizes.vocabulary, sizes.size), Learned(sizes.room, sizes.size)
        nn.init.normal_(self.words.weight, std=sizes.size**-0.5)
        self.stack = Stack(
            PreNorm(RunningAttention(sizes.size, sizes.heads, sizes.features, layer), sizes.size, sizes.hidden)
            for layer in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)

    def held(self) -> dict[str, tuple[int, ...]]:
        heads, features, layers = self.sizes.heads, self.sizes.features, range(self.sizes.layers)
        sums = {f"{layer}.sums": (heads, features, self.sizes.size // heads) for layer in layers}
        return sums | {f"{layer}.masses": (heads, features) for layer in layers}

    def decode(
        self,
        tokens: Tensor,
        positions: Tensor,
        memory: Tensor | None,  # noqa: ARG002
        lengths: Tensor | None,  # noqa: ARG002
    ) -> Tensor:
        states = self.words(tokens) * self.sizes.size**0.5 + self.positions(positions)
        answer: Tensor = self.norm(self.stack(states))
        return answer

    def logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.words.weight)
