"""Tay et al. 2020, Synthesizer: weights of places that come from no comparison of tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.kit.attention import attend, joined, split
from export.zoo.kit.masks import FAR, outside


class DenseSynthesizer(nn.Module):
    """A token alone says what it wants of each place. The second layer of that is a product with a learned vector per
    place, which are keys as far as the fused operator is concerned."""

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.wish, self.value, self.out = (nn.Linear(size, size) for _ in range(3))
        self.places = nn.Parameter(torch.randn(length, size) * (heads / size) ** 0.5)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        wishes, values = split(self.wish(states).relu(), self.heads), split(self.value(states), self.heads)
        places = self.places[torch.arange(states.shape[1])][None].expand(states.shape[0], -1, -1)
        answer: Tensor = self.out(attend(wishes, split(places, self.heads), values, lengths=lengths, scale=1.0))
        return answer


class RandomSynthesizer(nn.Module):
    """What a place wants of another is a weight, the same for all texts: it begins at random and is learned."""

    def __init__(self, size: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.value, self.out = nn.Linear(size, size), nn.Linear(size, size)
        self.scores = nn.Parameter(torch.randn(heads, length, length))

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        places = torch.arange(states.shape[1])
        scores = self.scores[:, places][:, :, places][None]
        if lengths is not None:
            scores = scores.masked_fill(outside(lengths, states.shape[1])[:, None, None], FAR)
        answer: Tensor = self.out(joined(scores.softmax(-1) @ split(self.value(states), self.heads)))
        return answer
