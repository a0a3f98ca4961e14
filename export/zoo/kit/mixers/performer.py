from __future__ import annotations

import torch
from torch import Tensor

from export.zoo.kit.attention import Projections, joined
from export.zoo.kit.masks import FAR, outside

_FLOOR = 1e-4  # of a query's features: no sum of weights is zero


class PerformerMixer(Projections):
    """Choromanski et al. 2020: softmax attention in expectation. Positive random features of queries and keys have the
    exponential of their product as mean, and sums over keys are taken before any query asks."""

    directions: Tensor

    def __init__(self, size: int, heads: int, features: int) -> None:
        super().__init__(size, heads)
        self.register_buffer("directions", orthogonal_directions(features, size // heads))

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        query, (key, value) = self.questions(states), self.memories(states)
        return self.answer(joined(linear_attention(query, key, value, self.directions, lengths)))


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, directions: Tensor, lengths: Tensor | None = None
) -> Tensor:
    """[rows, heads, length, size] each, and so is the answer."""
    asking = _exponents(query, directions)
    asking = (asking - asking.amax(-1, keepdim=True)).exp() + _FLOOR
    telling = _exponents(key, directions)
    if lengths is not None:
        telling = telling.masked_fill(outside(lengths, key.shape[2])[:, None, :, None], FAR)
    telling = (telling - telling.amax((2, 3), keepdim=True)).exp()
    totals = asking @ telling.sum(2)[..., None]
    return asking @ (telling.transpose(2, 3) @ value) / totals


def orthogonal_directions(count: int, size: int) -> Tensor:
    """[size, count], normally distributed each; those of one block of `size` are at right angles to each other."""
    blocks = torch.cat([_rotation(size) for _ in range(-(-count // size))], 1)
    return blocks[:, :count] * torch.randn(count, size).norm(dim=1)


def _rotation(size: int) -> Tensor:
    """All are as likely; the signs that the algorithm prefers for its factors would spoil that."""
    rotation, rest = torch.linalg.qr(torch.randn(size, size))
    return rotation * rest.diagonal().sign()


def _exponents(heads: Tensor, directions: Tensor) -> Tensor:
    """Of the features; the largest is subtracted before they are raised, which cancels out in the end."""
    heads = heads * heads.shape[3] ** -0.25  # the scale of a product, half of it on either side
    return heads @ directions - heads.square().sum(-1, keepdim=True) / 2
