from __future__ import annotations

import torch
from torch import Tensor

from headwaiter_export.zoo.layers.attention import AttentionProjections, merge_heads
from headwaiter_export.zoo.layers.masks import MASK_BIAS, padding_mask

_FEATURE_EPSILON = 1e-4  # added to query features so that no sum of weights is zero


class PerformerMixer(AttentionProjections):
    """Choromanski et al. 2020: approximates softmax attention with positive random features, whose expected dot product
    is the exponential of query · key. Sums over keys are computed once for all queries."""

    directions: Tensor

    def __init__(self, size: int, heads: int, features: int) -> None:
        super().__init__(size, heads)
        self.register_buffer("directions", orthogonal_directions(features, size // heads))

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        query, (key, value) = self.project_queries(states), self.project_keys_values(states)
        return self.project_output(merge_heads(linear_attention(query, key, value, self.directions, lengths)))


def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, directions: Tensor, lengths: Tensor | None = None
) -> Tensor:
    """All arguments and the result are [rows, heads, length, size]."""
    query_features = _exponents(query, directions)
    query_features = (query_features - query_features.amax(-1, keepdim=True)).exp() + _FEATURE_EPSILON
    key_features = _exponents(key, directions)
    if lengths is not None:
        key_features = key_features.masked_fill(padding_mask(lengths, key.shape[2])[:, None, :, None], MASK_BIAS)
    key_features = (key_features - key_features.amax((2, 3), keepdim=True)).exp()
    totals = query_features @ key_features.sum(2)[..., None]
    return query_features @ (key_features.transpose(2, 3) @ value) / totals


def orthogonal_directions(count: int, size: int) -> Tensor:
    """Normally distributed directions [size, count], orthogonal within each block of `size`."""
    blocks = torch.cat([_rotation(size) for _ in range(-(-count // size))], 1)
    return blocks[:, :count] * torch.randn(count, size).norm(dim=1)


def _rotation(size: int) -> Tensor:
    """Uniformly random rotation; correcting the signs of the QR factors makes it uniform."""
    rotation, upper = torch.linalg.qr(torch.randn(size, size))
    return rotation * upper.diagonal().sign()


def _exponents(heads: Tensor, directions: Tensor) -> Tensor:
    """Exponents of the features. Callers subtract the maximum before exponentiation; it cancels out in the quotient."""
    heads = heads * heads.shape[3] ** -0.25  # half of the 1/√size scale each for queries and keys
    return heads @ directions - heads.square().sum(-1, keepdim=True) / 2
