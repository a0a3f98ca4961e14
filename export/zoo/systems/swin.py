from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from export.zoo.data.digits import Digits
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.images import Patches
from export.zoo.kit.masks import FAR
from export.zoo.kit.positions import RelativeBias
from export.zoo.model import ImageClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes


class SwinSizes(Sizes):
    image: PositiveInt = 16
    patch: PositiveInt = 2
    window: PositiveInt = 4  # height and width, in patches
    size: PositiveInt = 32  # of the first stage; every stage doubles it, and the heads
    heads: PositiveInt = 2
    depths: tuple[PositiveInt, ...] = (2, 2)  # blocks of each stage
    growth: PositiveInt = 2  # of vectors inside the feed-forward blocks
    classes: PositiveInt = 10

    @model_validator(mode="after")
    def _windows_fit(self) -> Self:
        self.demand_divides("heads", "size")
        self.demand_divides("patch", "image")
        for stage, grid in enumerate(self.grids):
            if grid % min(self.window, grid):
                raise ValueError(
                    f"the grid of stage {stage} is {grid} wide, which window {self.window} does not divide"
                )
            if grid % 2 and stage < len(self.depths) - 1:
                raise ValueError(f"the grid of stage {stage} is {grid} wide, which does not merge two by two")
        return self

    @property
    def grids(self) -> list[int]:
        """Patches along a side, stage by stage."""
        return [self.image // self.patch // 2**stage for stage in range(len(self.depths))]


class WindowAttention(nn.Module):
    """Patches see the patches of their window, on a grid that is first moved by `shift`."""

    strangers: Tensor

    def __init__(self, size: int, heads: int, grid: int, window: int, shift: int) -> None:
        super().__init__()
        self.attention, self.relative = SelfAttention(size, heads), RelativeBias(window, window, heads)
        self.grid, self.window, self.shift = grid, window, shift
        self.register_buffer("strangers", self._strangers(), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        grid = states.unflatten(1, (self.grid, self.grid))
        bias = self.relative()
        if self.shift:
            grid = grid.roll((-self.shift, -self.shift), (1, 2))
            bias = (bias + self.strangers).repeat(states.shape[0], 1, 1, 1)
        grid = self._whole(self.attention(self._windows(grid), bias=bias))
        if self.shift:
            grid = grid.roll((self.shift, self.shift), (1, 2))
        return grid.flatten(1, 2)

    def _windows(self, grid: Tensor) -> Tensor:
        """[rows, grid, grid, size] to [rows · windows, cells, size]."""
        beside = self.grid // self.window
        cut = grid.unflatten(2, (beside, self.window)).unflatten(1, (beside, self.window))
        return cut.transpose(2, 3).flatten(3, 4).flatten(0, 2)

    def _whole(self, windows: Tensor) -> Tensor:
        beside = self.grid // self.window
        cut = windows.unflatten(0, (-1, beside, beside)).unflatten(3, (self.window, self.window))
        return cut.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def _strangers(self) -> Tensor:
        """A bias [windows, 1, cells, cells] between patches that only the shift brought into one window."""
        around = torch.arange(self.grid) >= self.grid - self.shift
        part = (2 * around[:, None] + around[None]).float()
        cells = self._windows(part[None, :, :, None])[:, :, 0]
        return FAR * (cells[:, :, None] != cells[:, None])[:, None].float()


class Merging(nn.Module):
    """Four neighbours become one patch of twice the size."""

    def __init__(self, size: int, grid: int) -> None:
        super().__init__()
        self.grid = grid
        self.norm, self.reduction = nn.LayerNorm(4 * size), nn.Linear(4 * size, 2 * size, bias=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        half = self.grid // 2
        fours = states.unflatten(1, (half, 2, half, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)
        merged: Tensor = self.reduction(self.norm(fours))
        return merged


@system(
    "swin",
    group="vision",
    paper="Liu et al. 2021, Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
    recipe=Recipe(Digits, bar=0.95, steps=1500),
)
class Swin(ImageClassifier):
    """Every second block moves the windows by half; a stage whose grid is one window has nothing to move."""

    Sizes: ClassVar[type[Sizes]] = SwinSizes

    def __init__(self, sizes: SwinSizes) -> None:
        super().__init__(sizes)
        self.patches, self.patches_norm = Patches(sizes.patch, sizes.size), nn.LayerNorm(sizes.size)
        layers: list[nn.Module] = []
        for stage, (grid, depth) in enumerate(zip(sizes.grids, sizes.depths, strict=True)):
            size, heads, window = sizes.size * 2**stage, sizes.heads * 2**stage, min(sizes.window, grid)
            if stage:
                layers.append(Merging(size // 2, 2 * grid))
            for index in range(depth):
                shift = window // 2 if index % 2 and window < grid else 0
                mixer = WindowAttention(size, heads, grid, window, shift)
                layers.append(PreNorm(mixer, size, sizes.growth * size))
        self.stack = Stack(layers)
        self.norm, self.head = nn.LayerNorm(size), nn.Linear(size, sizes.classes)

    def forward(self, pixels: Tensor) -> Tensor:
        states = self.stack(self.patches_norm(self.patches(pixels)))
        answer: Tensor = self.head(self.norm(states).mean(1))
        return answer
