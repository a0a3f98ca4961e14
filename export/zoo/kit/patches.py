"""Classifiers of images cut into patches: embedded, mixed by a stack, judged. Systems choose the mixer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.images import Patches
from export.zoo.model import ImageClassifier
from export.zoo.sizes import ImageSizes


class PatchClassifier(ImageClassifier):
    """The answer is read from the average of the patches."""

    block: ClassVar[type[PreNorm]] = PreNorm

    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__(sizes)
        self.patches = self.make_patches(sizes)
        self.stack = Stack(self.block(self.make_mixer(sizes), sizes.size, sizes.hidden) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.classes)

    def make_patches(self, sizes: Any) -> nn.Module:
        """Called with pixels, it returns states [rows, places, size]."""
        return Patches(sizes.patch, sizes.size)

    def make_mixer(self, sizes: ImageSizes) -> nn.Module:
        """One layer's; called with states [rows, places, size]."""
        return SelfAttention(sizes.size, sizes.heads)

    def forward(self, pixels: Tensor) -> Tensor:
        answer: Tensor = self.head(self.norm(self.stack(self.patches(pixels))).mean(1))
        return answer


class LedPatchClassifier(PatchClassifier):
    """`leaders` learned tokens stand before the patches, and the answer is read from the first of them."""

    leaders: ClassVar[int] = 1

    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__(sizes)
        self.first = nn.Parameter(torch.randn(1, self.leaders, sizes.size) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, self.leaders + sizes.patches, sizes.size) * 0.02)

    def mixed(self, pixels: Tensor) -> Tensor:
        """States [rows, leaders + patches, size] behind the stack."""
        states = torch.cat([self.first.expand(pixels.shape[0], -1, -1), self.patches(pixels)], 1)
        answer: Tensor = self.norm(self.stack(states + self.positions))
        return answer

    def forward(self, pixels: Tensor) -> Tensor:
        answer: Tensor = self.head(self.mixed(pixels)[:, 0])
        return answer
