"""Image classifiers over patches. Subclasses choose the mixer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.image_embedding import PatchEmbedding
from headwaiter_export.zoo.model import ImageClassifier
from headwaiter_export.zoo.sizes import ImageSizes


class PatchClassifier(ImageClassifier):
    """Classifies from the mean of the patches."""

    block: ClassVar[type[PreNormBlock]] = PreNormBlock

    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__(sizes)
        self.patches = self.make_patches(sizes)
        self.stack = Stack(self.block(self.make_mixer(sizes), sizes.size, sizes.hidden) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.classes)

    def make_patches(self, sizes: Any) -> nn.Module:
        """Return a module that maps pixels to states [rows, positions, size]."""
        return PatchEmbedding(sizes.patch, sizes.size)

    def make_mixer(self, sizes: ImageSizes) -> nn.Module:
        """Return the mixer of one layer; it takes states [rows, positions, size]."""
        return SelfAttention(sizes.size, sizes.heads)

    def forward(self, pixels: Tensor) -> Tensor:
        scores: Tensor = self.head(self.norm(self.stack(self.patches(pixels))).mean(1))
        return scores


class ClassTokenClassifier(PatchClassifier):
    """Prepends `class_tokens` learned tokens to the patches and classifies from the first of them."""

    class_tokens: ClassVar[int] = 1

    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__(sizes)
        self.first = nn.Parameter(torch.randn(1, self.class_tokens, sizes.size) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, self.class_tokens + sizes.patches, sizes.size) * 0.02)

    def encode_patches(self, pixels: Tensor) -> Tensor:
        """Return states [rows, class_tokens + patches, size] after the stack."""
        states = torch.cat([self.first.expand(pixels.shape[0], -1, -1), self.patches(pixels)], 1)
        encoded: Tensor = self.norm(self.stack(states + self.positions))
        return encoded

    def forward(self, pixels: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encode_patches(pixels)[:, 0])
        return scores
