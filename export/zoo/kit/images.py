"""Images as sequences of patches."""

from __future__ import annotations

from torch import Tensor, nn


class Patches(nn.Conv2d):
    """Dosovitskiy et al. 2020: each patch of an image becomes a vector, [rows, patches, size]."""

    def __init__(self, patch: int, size: int) -> None:
        super().__init__(3, size, patch, patch)

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels).flatten(2).transpose(1, 2)
