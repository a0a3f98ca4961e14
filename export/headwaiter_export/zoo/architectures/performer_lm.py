from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from headwaiter_export.zoo.data.copying import Copying
from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.mixers.causal_performer import CausalPerformerAttention
from headwaiter_export.zoo.layers.positions import LearnedPositions
from headwaiter_export.zoo.model import Generator
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import AutoregressiveSizes, Sizes


class PerformerLmSizes(AutoregressiveSizes):
    features: PositiveInt = 64  # random features per query and key


@architecture(
    "performer-lm",
    group="efficient attention",
    paper="Choromanski et al. 2020, Rethinking Attention with Performers",
    recipe=Recipe(Copying, target=0.9, steps=4000, learning_rate=2e-3, tier=2),
)
class PerformerLm(Generator):
    """The state of a sequence has constant size, independent of its length."""

    Sizes: ClassVar[type[Sizes]] = PerformerLmSizes

    def __init__(self, sizes: PerformerLmSizes) -> None:
        super().__init__(sizes)
        self.words, self.positions = (
            nn.Embedding(sizes.vocabulary, sizes.size),
            LearnedPositions(sizes.room, sizes.size),
        )
        nn.init.normal_(self.words.weight, std=sizes.size**-0.5)
        self.stack = Stack(
            PreNormBlock(
                CausalPerformerAttention(sizes.size, sizes.heads, sizes.features, layer), sizes.size, sizes.hidden
            )
            for layer in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
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
        output: Tensor = self.norm(self.stack(states))
        return output

    def logits(self, states: Tensor) -> Tensor:
        return functional.linear(states, self.words.weight)
