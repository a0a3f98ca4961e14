from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.attention import CrossAttention, SelfAttention
from export.zoo.kit.blocks import FeedForward, PreNorm
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes, Sizes


class PerceiverSizes(SequenceSizes):
    latents: PositiveInt = 16


class Glance(nn.Module):
    """Latents attend to the input, then to each other: the cost grows with the input's length, not with its square."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.cross, self.cross_feed = CrossAttention(size, heads), FeedForward(size, hidden)
        self.latent_norm, self.input_norm, self.feed_norm = (nn.LayerNorm(size) for _ in range(3))
        self.inner = PreNorm(SelfAttention(size, heads), size, hidden)

    def forward(self, latents: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        latents = latents + self.cross(self.latent_norm(latents), self.input_norm(states), lengths)
        latents = latents + self.cross_feed(self.feed_norm(latents))
        answer: Tensor = self.inner(latents)
        return answer


class Glances(nn.Module):
    """Latents [rows, latents, size] after so many glances at states [rows, length, size]."""

    def __init__(self, sizes: PerceiverSizes) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(1, sizes.latents, sizes.size) * 0.02)
        self.glances = nn.ModuleList(Glance(sizes.size, sizes.heads, sizes.hidden) for _ in range(sizes.layers))

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        latents = self.latents.expand(states.shape[0], -1, -1)
        for glance in self.glances:
            latents = glance(latents, states, lengths)
        return latents


@system(
    "perceiver",
    group="cheaper attention",
    paper="Jaegle et al. 2021, Perceiver: General Perception with Iterative Attention",
    recipe=Recipe(ListOps, bar=0.88, steps=2000, tier=2),
)
class Perceiver(SequenceClassifier):
    """Every glance has weights of its own; the paper may share them. The answer is read from the mean latent."""

    Sizes: ClassVar[type[Sizes]] = PerceiverSizes

    def make_stack(self, sizes: SequenceSizes) -> nn.Module:
        assert isinstance(sizes, PerceiverSizes)
        return Glances(sizes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        latents = self.stack(self.embedded(tokens), lengths)
        answer: Tensor = self.head(self.norm(latents).mean(1))
        return answer
