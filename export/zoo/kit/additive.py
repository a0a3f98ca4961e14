"""Attention from before products: a small network scores each place."""

from __future__ import annotations

from torch import Tensor, nn

from export.zoo.kit.attention import Pair
from export.zoo.kit.masks import FAR, outside

NO_OPERATOR = "additive attention scores places with a tanh layer, not with products"


class AdditiveAttention(nn.Module):
    """Bahdanau et al. 2014: places are weighed by v · tanh(W state + U place). Numbers are the sizes of a state, of a
    place, and of what both are brought to."""

    def __init__(self, state: int, place: int, size: int) -> None:
        super().__init__()
        self.sizes = (size, place)  # of keys and of values
        self.query, self.key = nn.Linear(state, size, bias=False), nn.Linear(place, size)
        self.score = nn.Linear(size, 1, bias=False)

    def memories(self, places: Tensor) -> Pair:
        """What does not change from step to step, [rows, 1, places, size] each: there is one head."""
        return self.key(places)[:, None], places[:, None]

    def forward(self, state: Tensor, seen: Pair, lengths: Tensor | None) -> Tensor:
        """The weighed sum [rows, place] of the places that are real."""
        return (self.weights(state, seen[0], lengths)[:, None] @ seen[1].squeeze(1)).squeeze(1)

    def weights(self, state: Tensor, keys: Tensor, lengths: Tensor | None) -> Tensor:
        scores = self.score((keys.squeeze(1) + self.query(state)[:, None]).tanh()).squeeze(2)
        if lengths is not None:
            scores = scores.masked_fill(outside(lengths, keys.shape[2]), FAR)
        return scores.softmax(1)
