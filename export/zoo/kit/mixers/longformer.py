from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.kit.attention import Projections, attend, split
from export.zoo.kit.masks import FAR
from export.zoo.kit.mixers.chunks import cut, filled_up, hidden, places_seen, with_neighbours


class LongformerMixer(Projections):
    """Beltagy et al. 2020: a token sees `window` others on either side and the first token, and the first one, which
    has projections of its own for that, sees all."""

    band: Tensor

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__(size, heads)
        self.window = window
        self.global_query, self.global_key, self.global_value = (nn.Linear(size, size) for _ in range(3))
        apart = torch.arange(-window, 2 * window) - torch.arange(window)[:, None]
        self.register_buffer("band", torch.where(apart.abs() > window, FAR, 0.0), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows, length, _ = states.shape
        if lengths is None:
            lengths = torch.full((rows,), length, dtype=torch.int32)
        first = self._seen_by_first(states, lengths)
        others = self._seen_in_windows(filled_up(states, self.window), lengths)
        return self.answer(torch.cat([first, others[:, 1:length]], 1))

    def _seen_by_first(self, states: Tensor, lengths: Tensor) -> Tensor:
        query = split(self.global_query(states[:, :1]), self.heads)
        key, value = split(self.global_key(states), self.heads), split(self.global_value(states), self.heads)
        return attend(query, key, value, lengths=lengths)

    def _seen_in_windows(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Blocks of a window's length see themselves, their neighbours and, before these, the first token."""
        queries, (keys, values) = self.questions(states), self.memories(states)
        blocks = cut(queries, self.window)
        places = places_seen(blocks.shape[2], self.window, 1, 1)
        bias = hidden(places, lengths) + torch.where(places == 0, FAR, 0.0)  # the first token is there already
        bias = torch.nn.functional.pad(bias[:, :, None] + self.band, (1, 0)).flatten(0, 1)[:, None]
        seen = attend(_rows(blocks), self._shown(keys), self._shown(values), bias=bias)
        return seen.reshape(states.shape)

    def _shown(self, heads: Tensor) -> Tensor:
        blocks = cut(heads, self.window)
        first = heads[:, :, None, :1].expand(-1, -1, blocks.shape[2], -1, -1)
        return _rows(torch.cat([first, with_neighbours(blocks, 1, 1)], 3))


def _rows(blocks: Tensor) -> Tensor:
    """[rows, heads, blocks, length, size] to [rows · blocks, heads, length, size]."""
    return blocks.transpose(1, 2).flatten(0, 1)
