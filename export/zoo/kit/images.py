"""Images as sequences."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle

from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.positions import RelativeBias
from export.zoo.sizes import Seen


class Patches(nn.Conv2d):
    """Dosovitskiy et al. 2020: each patch of an image becomes a vector, [rows, patches, size]."""

    def __init__(self, patch: int, size: int) -> None:
        super().__init__(3, size, patch, patch)

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels).flatten(2).transpose(1, 2)


STRIDE = 8  # of the stem: pixels along one side of what a vector stands for


class Stem(nn.Sequential):
    """Convolutions that halve the image, three times unless told otherwise: [rows, places, size]."""

    def __init__(self, size: int, halvings: int = 3) -> None:
        widths = (3, size // 2, *[size] * (halvings - 1))
        layers = [
            layer
            for before, after in pairwise(widths)
            for layer in (nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        ]
        super().__init__(*layers, nn.Conv2d(size, size, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        states: Tensor = super().forward(pixels)
        return states.flatten(2).transpose(1, 2)


def seen_by(sizes: Seen) -> nn.Module:
    """From pixels to vectors, [rows, places, size]."""
    if not sizes.convolutions:
        return Patches(sizes.patch, sizes.size)
    return Stem(sizes.size, halvings=sizes.patch.bit_length() - 1)


class GridAttention(SelfAttention):
    """Over all cells of a square grid, with a learned bias for how far two cells are apart."""

    def __init__(self, size: int, heads: int, side: int) -> None:
        super().__init__(size, heads)
        self.offsets = RelativeBias(side, side, heads)

    def forward(self, states: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        near: Tensor = self.offsets()
        return super().forward(states, lengths, near if bias is None else near + bias)


def enlarged(states: Tensor, side: int) -> Tensor:
    """Shi et al. 2016, PixelShuffle: cells [rows, side², size] become four each, [rows, (2 · side)², size / 4]."""
    grid = states.transpose(1, 2).unflatten(2, (side, side))
    return pixel_shuffle(grid, 2).flatten(2).transpose(1, 2)
