from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.data.reversing import Reversing
from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.decoders import TransformerDecoder, TransformerDecoderModel
from headwaiter_export.zoo.layers.positions import SinusoidalPositions
from headwaiter_export.zoo.model import Translator
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import Sizes, TranslatorSizes


@architecture(
    "transformer",
    group="the transformer",
    paper="Vaswani et al. 2017, Attention Is All You Need",
    recipe=Recipe(Reversing, target=0.98, steps=2500),
)
class Transformer(TransformerDecoderModel, Translator):
    """Pre-norm blocks, which train without the paper's long warm-up."""

    Sizes: ClassVar[type[Sizes]] = TranslatorSizes

    def __init__(self, sizes: TranslatorSizes) -> None:
        super().__init__(sizes)
        positions = SinusoidalPositions(max(sizes.source, sizes.room), sizes.size)
        self.decoder = TransformerDecoder(sizes, positions, with_cross_attention=True)
        self.encoder = Stack(
            PreNormBlock(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden) for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        embeddings = self.decoder.words(tokens) * self.sizes.size**0.5
        states: Tensor = self.norm(
            self.encoder(embeddings + self.decoder.positions(torch.arange(tokens.shape[1])), lengths)
        )
        return states
