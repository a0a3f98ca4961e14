"""How a token knows where it stands."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def sinusoids(length: int, size: int, slowest: float = 10_000.0) -> Tensor:
    """Vaswani et al. 2017: [length, size], sines in the even places and cosines in the odd ones."""
    rates = torch.exp(torch.arange(0, size, 2) * (-torch.log(torch.tensor(slowest)) / size))
    angles = torch.arange(length)[:, None] * rates[None]
    return torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[:, :size]


def grid_sinusoids(side: int, size: int) -> Tensor:
    """Carion et al. 2020: [side · side, size], half of the numbers for the row of a cell and half for its column."""
    along = sinusoids(side, size // 2, slowest=100.0)  # a grid is short: slower waves would hardly differ
    return torch.cat([along.repeat_interleave(side, 0), along.repeat(side, 1)], 1)


class Sinusoidal(nn.Module):
    table: Tensor

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        self.register_buffer("table", sinusoids(length, size), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        return self.table[positions]


class OnGrid(nn.Module):
    """Adds to each cell of an image where it is."""

    table: Tensor

    def __init__(self, side: int, size: int) -> None:
        super().__init__()
        self.register_buffer("table", grid_sinusoids(side, size), persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        return states + self.table


class Learned(nn.Embedding):
    """A vector for each position, learned like those of words."""

    def __init__(self, length: int, size: int) -> None:
        super().__init__(length, size)
        nn.init.normal_(self.weight, std=0.02)


class Rotary(nn.Module):
    """Su et al. 2021: pairs of numbers turn with the position, so products of turned vectors know only distances."""

    angles: Tensor

    def __init__(self, length: int, size: int) -> None:
        super().__init__()
        rates = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("angles", torch.arange(length)[:, None] * rates[None], persistent=False)

    def forward(self, heads: Tensor) -> Tensor:
        """Heads [rows, heads, length, size] that stand at 0, 1, 2 …, turned."""
        angles = self.angles[: heads.shape[2]]
        even, odd = heads[..., 0::2], heads[..., 1::2]
        cosines, sines = angles.cos(), angles.sin()
        return torch.stack([even * cosines - odd * sines, even * sines + odd * cosines], -1).flatten(3)


class RelativeBias(nn.Module):
    """A learned number per head for each offset between two cells of a grid: [1, heads, cells, cells]."""

    offsets: Tensor

    def __init__(self, height: int, width: int, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros((2 * height - 1) * (2 * width - 1), heads))
        nn.init.normal_(self.table, std=0.02)
        cells = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).flatten(1)
        apart = cells[:, :, None] - cells[:, None] + torch.tensor([height - 1, width - 1])[:, None, None]
        self.register_buffer("offsets", apart[0] * (2 * width - 1) + apart[1], persistent=False)

    def forward(self) -> Tensor:
        return self.table[self.offsets].permute(2, 0, 1)[None]
