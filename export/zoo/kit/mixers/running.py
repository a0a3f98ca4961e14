from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from export.attention import scene
from export.zoo.kit.attention import Projections, joined
from export.zoo.kit.masks import inside
from export.zoo.kit.mixers.performer import orthogonal_directions

_FLOOR = 1e-4  # of a feature: no sum of weights is zero


class RunningAttention(Projections):
    """Choromanski et al. 2020, causal: all that is known of the past is a sum of values and a sum of weights, under
    positive random features. While traced, the sums before this step are the scene's."""

    directions: Tensor

    def __init__(self, size: int, heads: int, features: int, layer: int) -> None:
        super().__init__(size, heads)
        self.layer = layer
        directions = functional.normalize(orthogonal_directions(features, size // heads), dim=0)
        self.register_buffer("directions", directions * (size // heads) ** 0.5)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:  # noqa: ARG002
        key, value = self.memories(states)
        asking, telling = self.features(self.questions(states)), self.features(key)
        weights = (asking @ telling.transpose(2, 3)).tril()
        seen, total = weights @ value, weights.sum(3, keepdim=True)
        playing = scene()
        if playing is not None:
            assert playing.lengths_now is not None
            sums, masses = (playing.held[f"{self.layer}.{name}"] for name in ("sums", "masses"))
            seen, total = seen + asking @ sums, total + asking @ masses[..., None]
            real = telling * inside(playing.lengths_now, states.shape[1])[:, None, :, None].to(telling.dtype)
            playing.left[f"{self.layer}.sums"] = sums + real.transpose(2, 3) @ value
            playing.left[f"{self.layer}.masses"] = masses + real.sum(2)
        return self.answer(joined(seen / total))

    def features(self, heads: Tensor) -> Tensor:
        """Products of two are about exp(query · key / √size), but for a factor. Directions are of one length: a small
        bias, but it bounds the features, and the factor keeps their sums within half precision."""
        size = heads.shape[3]
        heads = heads * size**-0.25
        exponents = heads @ self.directions - heads.square().sum(3, keepdim=True) / 2 - size / 4
        return torch.exp(exponents) + _FLOOR
