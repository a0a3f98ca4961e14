"""Additive attention: a small network scores each position."""

from __future__ import annotations

from torch import Tensor, nn

from headwaiter_export.zoo.layers.attention import KeyValue
from headwaiter_export.zoo.layers.masks import MASK_BIAS, padding_mask

UNFUSABLE_REASON = "additive attention scores positions with a tanh layer, not with dot products"


class AdditiveAttention(nn.Module):
    """Bahdanau et al. 2014: scores are v · tanh(W state + U position). `state` and `position` are the input sizes,
    `size` is the size of the common projection."""

    def __init__(self, state: int, position: int, size: int) -> None:
        super().__init__()
        self.sizes = (size, position)  # of keys and of values
        self.query, self.key = nn.Linear(state, size, bias=False), nn.Linear(position, size)
        self.score = nn.Linear(size, 1, bias=False)

    def project_keys_values(self, states: Tensor) -> KeyValue:
        """Return keys and values [rows, 1, positions, size] with a single head; they are the same for all decoding
        steps."""
        return self.key(states)[:, None], states[:, None]

    def forward(self, state: Tensor, keys_values: KeyValue, lengths: Tensor | None) -> Tensor:
        """Return the weighted sum [rows, size] of the valid positions."""
        return (self.weights(state, keys_values[0], lengths)[:, None] @ keys_values[1].squeeze(1)).squeeze(1)

    def weights(self, state: Tensor, keys: Tensor, lengths: Tensor | None) -> Tensor:
        scores = self.score((keys.squeeze(1) + self.query(state)[:, None]).tanh()).squeeze(2)
        if lengths is not None:
            scores = scores.masked_fill(padding_mask(lengths, keys.shape[2]), MASK_BIAS)
        return scores.softmax(1)
