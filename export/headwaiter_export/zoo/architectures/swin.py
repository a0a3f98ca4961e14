from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.image_embedding import PatchEmbedding
from headwaiter_export.zoo.layers.masks import MASK_BIAS
from headwaiter_export.zoo.layers.positions import RelativePositionBias
from headwaiter_export.zoo.model import ImageClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import Sizes


class SwinSizes(Sizes):
    image: PositiveInt = 16
    patch: PositiveInt = 2
    window: PositiveInt = 4  # height and width in patches
    size: PositiveInt = 32  # width of the first stage; each stage doubles the width and the heads
    heads: PositiveInt = 2
    depths: tuple[PositiveInt, ...] = (2, 2)  # blocks per stage
    growth: PositiveInt = 2  # width of the feed-forward blocks relative to the stage
    classes: PositiveInt = 10

    @model_validator(mode="after")
    def _check_windows(self) -> Self:
        self.require_divides("heads", "size")
        self.require_divides("patch", "image")
        for stage, grid in enumerate(self.grids):
            if grid % min(self.window, grid):
                raise ValueError(
                    f"the grid of stage {stage} is {grid} wide; it must be a multiple of window ({self.window})"
                )
            if grid % 2 and stage < len(self.depths) - 1:
                raise ValueError(f"the grid of stage {stage} is {grid} wide; it must be even to be merged")
        return self

    @property
    def grids(self) -> list[int]:
        """Patches per side, by stage."""
        return [self.image // self.patch // 2**stage for stage in range(len(self.depths))]


class WindowAttention(nn.Module):
    """Self-attention within windows of a grid that is first shifted by `shift`."""

    shift_bias: Tensor

    def __init__(self, size: int, heads: int, grid: int, window: int, shift: int) -> None:
        super().__init__()
        self.attention, self.relative = SelfAttention(size, heads), RelativePositionBias(window, window, heads)
        self.grid, self.window, self.shift = grid, window, shift
        self.register_buffer("shift_bias", self._make_shift_bias(), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        grid = states.unflatten(1, (self.grid, self.grid))
        bias = self.relative()
        if self.shift:
            grid = grid.roll((-self.shift, -self.shift), (1, 2))
            bias = (bias + self.shift_bias).repeat(states.shape[0], 1, 1, 1)
        grid = self._merge_windows(self.attention(self._partition_windows(grid), bias=bias))
        if self.shift:
            grid = grid.roll((self.shift, self.shift), (1, 2))
        return grid.flatten(1, 2)

    def _partition_windows(self, grid: Tensor) -> Tensor:
        """Reshape [rows, grid, grid, size] to [rows · windows, cells, size]."""
        windows_per_side = self.grid // self.window
        tiles = grid.unflatten(2, (windows_per_side, self.window)).unflatten(1, (windows_per_side, self.window))
        return tiles.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def _merge_windows(self, windows: Tensor) -> Tensor:
        windows_per_side = self.grid // self.window
        tiles = windows.unflatten(0, (-1, windows_per_side, windows_per_side)).unflatten(3, (self.window, self.window))
        return tiles.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _make_shift_bias(self) -> Tensor:
        """Bias [windows, 1, cells, cells] that masks pairs of patches that share a window only because of the shift."""
        wrapped = torch.arange(self.grid) >= self.grid - self.shift
        region = (2 * wrapped[:, None] + wrapped[None]).float()
        cells = self._partition_windows(region[None, :, :, None])[:, :, 0]
        return MASK_BIAS * (cells[:, :, None] != cells[:, None])[:, None].float()


class PatchMerging(nn.Module):
    """Merges 2 × 2 neighbouring patches into one of twice the width."""

    def __init__(self, size: int, grid: int) -> None:
        super().__init__()
        self.grid = grid
        self.norm, self.reduction = nn.LayerNorm(4 * size), nn.Linear(4 * size, 2 * size, bias=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        half = self.grid // 2
        neighbours = states.unflatten(1, (half, 2, half, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
        merged: Tensor = self.reduction(self.norm(neighbours))
        return merged


@architecture(
    "swin",
    group="vision",
    paper="Liu et al. 2021, Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
    recipe=Recipe(Digits, target=0.95, steps=1500),
)
class Swin(ImageClassifier):
    """Every second block shifts the windows by half; stages with a single window are not shifted."""

    Sizes: ClassVar[type[Sizes]] = SwinSizes

    def __init__(self, sizes: SwinSizes) -> None:
        super().__init__(sizes)
        self.patches, self.patches_norm = PatchEmbedding(sizes.patch, sizes.size), nn.LayerNorm(sizes.size)
        layers: list[nn.Module] = []
        for stage, (grid, depth) in enumerate(zip(sizes.grids, sizes.depths, strict=True)):
            size, heads, window = sizes.size * 2**stage, sizes.heads * 2**stage, min(sizes.window, grid)
            if stage:
                layers.append(PatchMerging(size // 2, 2 * grid))
            for index in range(depth):
                shift = window // 2 if index % 2 and window < grid else 0
                mixer = WindowAttention(size, heads, grid, window, shift)
                layers.append(PreNormBlock(mixer, size, sizes.growth * size))
        self.stack = Stack(layers)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, sizes.classes)

    def forward(self, pixels: Tensor) -> Tensor:
        states = self.stack(self.patches_norm(self.patches(pixels)))
        scores: Tensor = self.head(self.norm(states).mean(1))
        return scores
