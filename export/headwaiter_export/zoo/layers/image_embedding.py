"""Image embeddings: images as sequences of vectors."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle

from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.positions import RelativePositionBias
from headwaiter_export.zoo.sizes import ImageEmbeddingSizes


class PatchEmbedding(nn.Conv2d):
    """Dosovitskiy et al. 2020: projects each patch of an image to a vector; returns [rows, patches, size]."""

    def __init__(self, patch: int, size: int) -> None:
        super().__init__(3, size, patch, patch)

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels).flatten(2).transpose(1, 2)


STRIDE = 8  # default stride of the convolutional stem in pixels


class ConvolutionalStem(nn.Sequential):
    """Stride-2 convolutions, three by default; returns [rows, positions, size]."""

    def __init__(self, size: int, downsamplings: int = 3) -> None:
        widths = (3, size // 2, *[size] * (downsamplings - 1))
        layers = [
            layer
            for before, after in pairwise(widths)
            for layer in (nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        ]
        super().__init__(*layers, nn.Conv2d(size, size, 3, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        states: Tensor = super().forward(pixels)
        return states.flatten(2).transpose(1, 2)


def make_image_embedding(sizes: ImageEmbeddingSizes, size: int) -> nn.Module:
    """Return a module that maps pixels to vectors [rows, positions, size]."""
    return (
        ConvolutionalStem(size, sizes.patch.bit_length() - 1)
        if sizes.convolutions
        else PatchEmbedding(sizes.patch, size)
    )


class GridAttention(SelfAttention):
    """Self-attention over all cells of a square grid with a learned relative position bias."""

    def __init__(self, size: int, heads: int, side: int) -> None:
        super().__init__(size, heads)
        self.offsets = RelativePositionBias(side, side, heads)

    def forward(self, states: Tensor, lengths: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        relative_bias: Tensor = self.offsets()
        return super().forward(states, lengths, relative_bias if bias is None else relative_bias + bias)


def pixel_shuffle_upsample(states: Tensor, side: int) -> Tensor:
    """Shi et al. 2016, PixelShuffle: upsample cells [rows, side², size] to [rows, (2 · side)², size / 4]."""
    grid = states.transpose(1, 2).unflatten(2, (side, side))
    return pixel_shuffle(grid, 2).flatten(2).transpose(1, 2)
