from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from export.zoo.data.reversing import Reversing
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.decoders import ByDecoder, WordDecoder
from export.zoo.kit.positions import Sinusoidal
from export.zoo.model import Translator
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes, TranslatorSizes


@system(
    "transformer",
    group="the transformer",
    paper="Vaswani et al. 2017, Attention Is All You Need",
    recipe=Recipe(Reversing, bar=0.98, steps=2500),
)
class Transformer(ByDecoder, Translator):
    """Norms stand before the blocks, which learns without the paper's long warm-up."""

    Sizes: ClassVar[type[Sizes]] = TranslatorSizes

    def __init__(self, sizes: TranslatorSizes) -> None:
        super().__init__(sizes)
        positions = Sinusoidal(max(sizes.source, sizes.room), sizes.size)
        self.decoder = WordDecoder(sizes, positions, crosses=True)
        self.encoder = Stack(
            PreNorm(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden) for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        words = self.decoder.words(tokens) * self.sizes.size**0.5
        states: Tensor = self.norm(self.encoder(words + self.decoder.positions(torch.arange(tokens.shape[1])), lengths))
        return states
