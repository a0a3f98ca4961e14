"""Synthesizer (Tay et al. 2020): attention weights that do not compare tokens with each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.layers.attention import attend, merge_heads, split_heads
from headwaiter_export.zoo.layers.masks import MASK_BIAS, padding_mask


class DenseSynthesizer(nn.Module):
    """Each token predicts its scores from its own state. The second layer of that prediction is a product with one
    learned vector per position, which serves as the key of the fused operator."""

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.wish, self.value, self.out = (nn.Linear(size, size) for _ in range(3))
        self.places = nn.Parameter(torch.randn(length, size) * (heads / size) ** 0.5)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        queries, values = split_heads(self.wish(states).relu(), self.heads), split_heads(self.value(states), self.heads)
        positions = self.places[torch.arange(states.shape[1])][None].expand(states.shape[0], -1, -1)
        output: Tensor = self.out(
            attend(queries, split_heads(positions, self.heads), values, lengths=lengths, scale=1.0)
        )
        return output


class RandomSynthesizer(nn.Module):
    """The scores between positions are learned weights, randomly initialized and the same for all inputs."""

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.value, self.out = nn.Linear(size, size), nn.Linear(size, size)
        self.scores = nn.Parameter(torch.randn(heads, length, length))

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        positions = torch.arange(states.shape[1])
        scores = self.scores[:, positions][:, :, positions][None]
        if lengths is not None:
            scores = scores.masked_fill(padding_mask(lengths, states.shape[1])[:, None, None], MASK_BIAS)
        output: Tensor = self.out(merge_heads(scores.softmax(-1) @ split_heads(self.value(states), self.heads)))
        return output
