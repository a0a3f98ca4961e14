from __future__ import annotations

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.layers.attention import AttentionProjections, attend, split_heads
from headwaiter_export.zoo.layers.masks import MASK_BIAS
from headwaiter_export.zoo.layers.mixers.chunks import (
    concat_neighbours,
    key_positions,
    out_of_range_bias,
    pad_to_multiple,
    split_chunks,
)


class LongformerMixer(AttentionProjections):
    """Beltagy et al. 2020: a token attends to `window` tokens on either side and to the first token; the first token
    attends to all, with projections of its own."""

    band: Tensor

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__(size, heads)
        self.window = window
        self.global_query, self.global_key, self.global_value = (nn.Linear(size, size) for _ in range(3))
        distances = torch.arange(-window, 2 * window) - torch.arange(window)[:, None]
        self.register_buffer("band", torch.where(distances.abs() > window, MASK_BIAS, 0.0), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        rows, length, _ = states.shape
        if lengths is None:
            lengths = torch.full((rows,), length, dtype=torch.int32)
        global_output = self._global_attention(states, lengths)
        window_output = self._window_attention(pad_to_multiple(states, self.window), lengths)
        return self.project_output(torch.cat([global_output, window_output[:, 1:length]], 1))

    def _global_attention(self, states: Tensor, lengths: Tensor) -> Tensor:
        query = split_heads(self.global_query(states[:, :1]), self.heads)
        key, value = (
            split_heads(self.global_key(states), self.heads),
            split_heads(self.global_value(states), self.heads),
        )
        return attend(query, key, value, lengths=lengths)

    def _window_attention(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Blocks of `window` tokens attend to the first token, themselves and their neighbours."""
        queries, (keys, values) = self.project_queries(states), self.project_keys_values(states)
        blocks = split_chunks(queries, self.window)
        positions = key_positions(blocks.shape[2], self.window, 1, 1)
        first_bias = torch.where(positions == 0, MASK_BIAS, 0.0)  # the first token is prepended to the keys
        bias = out_of_range_bias(positions, lengths) + first_bias
        bias = torch.nn.functional.pad(bias[:, :, None] + self.band, (1, 0)).flatten(0, 1)[:, None]
        attended = attend(_fold_blocks(blocks), self._window_keys(keys), self._window_keys(values), bias=bias)
        return attended.reshape(states.shape)

    def _window_keys(self, heads: Tensor) -> Tensor:
        blocks = split_chunks(heads, self.window)
        first = heads[:, :, None, :1].expand(-1, -1, blocks.shape[2], -1, -1)
        return _fold_blocks(torch.cat([first, concat_neighbours(blocks, 1, 1)], 3))


def _fold_blocks(blocks: Tensor) -> Tensor:
    """Reshape [rows, heads, blocks, length, size] to [rows · blocks, heads, length, size]."""
    return blocks.transpose(1, 2).flatten(0, 1)
