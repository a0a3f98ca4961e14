from __future__ import annotations

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.layers.attention import AttentionProjections, attend, split_heads
from headwaiter_export.zoo.layers.masks import zero_padding


class LinformerMixer(AttentionProjections):
    """Wang et al. 2020: learned per-position weights, shared by the heads, project keys and values along the length to
    `kept` ones. Time and memory are O(length · kept)."""

    def __init__(self, size: int, heads: int, length: int, kept: int) -> None:
        super().__init__(size, heads)
        self.key_sums, self.value_sums = (nn.Parameter(torch.randn(length, kept) * length**-0.5) for _ in range(2))

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        keys = self._project_length(self.key(states), self.key_sums, lengths)
        values = self._project_length(self.value(states), self.value_sums, lengths)
        return self.project_output(attend(self.project_queries(states), keys, values))

    def _project_length(self, states: Tensor, projection: Tensor, lengths: Tensor | None) -> Tensor:
        """Return [rows, heads, kept, head size]."""
        projection = projection[torch.arange(states.shape[1])]
        return split_heads(projection.T @ zero_padding(states, lengths), self.heads)
