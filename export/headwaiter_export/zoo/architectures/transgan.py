from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.data.drawn_digits import DrawnDigits
from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.image_embedding import GridAttention, PatchEmbedding, pixel_shuffle_upsample
from headwaiter_export.zoo.layers.masks import mean
from headwaiter_export.zoo.model import ImageGenerator
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import ImageGeneratorSizes, Sizes


class Stage(nn.Module):
    """Transformer blocks over the cells of one grid."""

    def __init__(self, side: int, size: int, heads: int, layers: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, side * side, size) * 0.02)
        self.stack = Stack(PreNormBlock(GridAttention(size, heads, side), size, 2 * size) for _ in range(layers))

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.stack(states + self.places)
        return output


class Discriminator(nn.Module):
    """Scores [rows] of how real images look; higher is more real."""

    def __init__(self, sizes: ImageGeneratorSizes) -> None:
        super().__init__()
        self.patches = PatchEmbedding(sizes.patch, sizes.critic)
        self.stage = Stage(sizes.image // sizes.patch, sizes.critic, sizes.heads, sizes.layers)
        self.norm, self.verdict = nn.LayerNorm(sizes.critic), nn.Linear(sizes.critic, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        states = self.stage(self.patches(2 * pixels - 1))
        scores: Tensor = self.verdict(mean(self.norm(states), None)).squeeze(1)
        return scores


@architecture(
    "transgan",
    group="image generation",
    paper="Jiang et al. 2021, TransGAN: Two Pure Transformers Can Make One Strong GAN",
    recipe=Recipe(DrawnDigits, target=6, steps=2000, tier=2),
)
class TransGan(ImageGenerator):
    Sizes: ClassVar[type[Sizes]] = ImageGeneratorSizes

    def __init__(self, sizes: ImageGeneratorSizes) -> None:
        super().__init__(sizes)
        self.seeds = nn.Linear(sizes.noise, sizes.start**2 * sizes.size)
        self.stages = nn.ModuleList(
            Stage(side, sizes.width(index), sizes.heads, sizes.layers) for index, side in enumerate(sizes.sides)
        )
        self.norm = nn.LayerNorm(sizes.width(len(sizes.sides) - 1))
        self.colours = nn.Linear(sizes.width(len(sizes.sides) - 1), 3)
        self.critic = Discriminator(sizes)

    def forward(self, noise: Tensor) -> Tensor:
        sides = self.sizes.sides
        states = self.seeds(noise).unflatten(1, (sides[0] ** 2, -1))
        for index, stage in enumerate(self.stages):
            states = stage(states if index == 0 else pixel_shuffle_upsample(states, sides[index - 1]))
        colours = self.colours(self.norm(states)).sigmoid()
        pixels: Tensor = colours.transpose(1, 2).unflatten(2, (sides[-1], sides[-1]))
        return pixels
