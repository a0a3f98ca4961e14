from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from headwaiter_export.tracing.attention import trace_context
from headwaiter_export.zoo.layers.attention import AttentionProjections, merge_heads
from headwaiter_export.zoo.layers.masks import valid_mask
from headwaiter_export.zoo.layers.mixers.performer import orthogonal_directions

_FEATURE_EPSILON = 1e-4  # added to every feature so that no sum of weights is zero


class CausalPerformerAttention(AttentionProjections):
    """Choromanski et al. 2020, causal: the past is summarized by a sum of values and a sum of weights over positive
    random features. While traced, the sums of earlier steps come from the trace context."""

    directions: Tensor

    def __init__(self, size: int, heads: int, features: int, layer: int) -> None:
        super().__init__(size, heads)
        self.layer = layer
        directions = functional.normalize(orthogonal_directions(features, size // heads), dim=0)
        self.register_buffer("directions", directions * (size // heads) ** 0.5)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        key, value = self.project_keys_values(states)
        query_features, key_features = self.features(self.project_queries(states)), self.features(key)
        weights = (query_features @ key_features.transpose(2, 3)).tril()
        attended, total = weights @ value, weights.sum(3, keepdim=True)
        context = trace_context()
        if context is not None:
            assert context.step_lengths is not None
            sums, masses = (context.states_in[f"{self.layer}.{name}"] for name in ("sums", "masses"))
            attended, total = attended + query_features @ sums, total + query_features @ masses[..., None]
            valid_features = key_features * valid_mask(context.step_lengths, states.shape[1])[:, None, :, None].to(
                key_features.dtype
            )
            context.states_out[f"{self.layer}.sums"] = sums + valid_features.transpose(2, 3) @ value
            context.states_out[f"{self.layer}.masses"] = masses + valid_features.sum(2)
        return self.project_output(merge_heads(attended / total))

    def features(self, heads: Tensor) -> Tensor:
        """Positive random features whose dot products approximate exp(query · key / √size) up to a constant factor. All
        directions have the same norm: a small bias, but it bounds the features, and the factor keeps their sums within
        half precision."""
        size = heads.shape[3]
        heads = heads * size**-0.25
        exponents = heads @ self.directions - heads.square().sum(3, keepdim=True) / 2 - size / 4
        return torch.exp(exponents) + _FEATURE_EPSILON
