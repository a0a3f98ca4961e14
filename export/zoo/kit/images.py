"""Images as sequences."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class Patches(nn.Conv2d):
    """Dosovitskiy et al. 2020: each patch of an image becomes a vector, [rows, patches, size]."""

    def __init__(self, patch: int, size: int) -> None:
        super().__init__(3, size, patch, patch)

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels).flatten(2).transpose(1, 2)


STRIDE = 8  # of the stem: pixels along one side of what a vector stands for


class Stem(nn.Sequential):
    """Convolutions that halve the image three times: [rows, places, size]."""

    def __init__(self, size: int) -> None:
        widths = (3, size // 2, size, size)
        halvings = [
            layer
            for before, after in pairwise(widths)
            for layer in (nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        ]
        super().__init__(*halvings, nn.Conv2d(size, size, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        states: Tensor = super().forward(pixels)
        return states.flatten(2).transpose(1, 2)
