"""Position embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def sinusoids(length: int, size: int, base: float = 10_000.0) -> Tensor:
    """Vaswani et al. 2017: [length, size] with sines at even and cosines at odd indices."""
    frequencies = torch.exp(torch.arange(0, size, 2) * (-torch.log(torch.tensor(base)) / size))
    angles = torch.arange(length)[:, None] * frequencies[None]
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :size]


def grid_sinusoids(side: int, size: int) -> Tensor:
    """Carion et al. 2020: [side · side, size]; half of the numbers encode the row of a cell, half its column."""
    axis_embeddings = sinusoids(
        side, size // 2, base=100.0
    )  # grids are short; a larger base would hardly separate cells
    return torch.cat([axis_embeddings.repeat_interleave(side, 0), axis_embeddings.repeat(side, 1)], 1)


class SinusoidalPositions(nn.Module):
    table: Tensor

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(length, size), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        return self.table[positions]


class GridPositions(nn.Module):
    """Adds position embeddings to the cells of an image."""

    table: Tensor

    def __init__(self, side: int, size: int) -> None:
        super().__init__()
        self.register_buffer("table", grid_sinusoids(side, size), persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        return states + self.table


class LearnedPositions(nn.Embedding):
    """One learned vector per position."""

    def __init__(self, length: int, size: int) -> None:
        super().__init__(length, size)
        nn.init.normal_(self.weight, std=0.02)


class Rotary(nn.Module):
    """Su et al. 2021: rotates pairs of numbers by the position, so that dot products depend only on distances."""

    angles: Tensor

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("angles", torch.arange(length)[:, None] * frequencies[None], persistent=False)

    def forward(self, heads: Tensor) -> Tensor:
        """Rotate `heads` [rows, heads, length, size] at positions 0, 1, 2, …."""
        angles = self.angles[: heads.shape[2]]
        even, odd = heads[..., 0::2], heads[..., 1::2]
        cosines, sines = angles.cos(), angles.sin()
        return torch.stack([even * cosines - odd * sines, even * sines + odd * cosines], -1).flatten(3)


class RelativePositionBias(nn.Module):
    """Learned bias [1, heads, cells, cells], one number per head for each offset between two cells of a grid."""

    offsets: Tensor

    def __init__(self, height: int, width: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros((2 * height - 1) * (2 * width - 1), heads))
        nn.init.normal_(self.table, std=0.02)
        cells = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).flatten(1)
        differences = cells[:, :, None] - cells[:, None] + torch.tensor([height - 1, width - 1])[:, None, None]
        self.register_buffer("offsets", differences[0] * (2 * width - 1) + differences[1], persistent=False)

    def forward(self) -> Tensor:
        return self.table[self.offsets].permute(2, 0, 1)[None]
