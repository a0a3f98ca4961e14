from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.data.digits import Digits
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.images import Patches
from export.zoo.model import ImageClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import ImageSizes


@system(
    "vit",
    group="vision",
    paper="Dosovitskiy et al. 2020, An Image is Worth 16x16 Words",
    recipe=Recipe(Digits, bar=0.95, steps=1500),
)
class ViT(ImageClassifier):
    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__(sizes)
        self.patches = Patches(sizes.patch, sizes.size)
        self.first = nn.Parameter(torch.randn(1, 1, sizes.size) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, 1 + (sizes.image // sizes.patch) ** 2, sizes.size) * 0.02)
        self.stack = Stack(
            PreNorm(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden) for _ in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.classes)

    def forward(self, pixels: Tensor) -> Tensor:
        states = torch.cat([self.first.expand(pixels.shape[0], -1, -1), self.patches(pixels)], 1)
        states = self.stack(states + self.positions)
        answer: Tensor = self.head(self.norm(states[:, 0]))
        return answer
