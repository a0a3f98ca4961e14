from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.kit.attention import Projections, attend, split
from export.zoo.kit.masks import blanked


class LinformerMixer(Projections):
    """Wang et al. 2020: along the length, keys and values are summed up into `kept` ones by weights that belong to
    places; heads share these. Time and memory are of the order of length · kept."""

    def __init__(self, size: int, heads: int, length: int, kept: int) -> None:
        super().__init__(size, heads)
        self.key_sums, self.value_sums = (nn.Parameter(torch.randn(length, kept) * length**-0.5) for _ in range(2))

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        keys = self._summed(self.key(states), self.key_sums, lengths)
        values = self._summed(self.value(states), self.value_sums, lengths)
        return self.answer(attend(self.questions(states), keys, values))

    def _summed(self, states: Tensor, sums: Tensor, lengths: Tensor | None) -> Tensor:
        """[rows, heads, kept, size of a head]."""
        sums = sums[torch.arange(states.shape[1])]
        return split(sums.T @ blanked(states, lengths), self.heads)
