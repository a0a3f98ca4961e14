from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.digits import Digits
from export.zoo.kit.attention import CrossAttention
from export.zoo.kit.blocks import FeedForward, PreNorm
from export.zoo.kit.patches import PatchClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import ImageSizes, Sizes

_BEGINNING = 0.1  # of LayerScale, as the paper has it for shallow networks


class CaitSizes(ImageSizes):
    judging: PositiveInt = 2  # layers of class attention


class LayerScale(nn.Module):
    """What a block adds begins small, number by number: deep stacks then learn from the start."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), _BEGINNING))

    def forward(self, states: Tensor) -> Tensor:
        return states * self.weight


class LayerScaled(PreNorm):
    def __init__(self, mixer: nn.Module, size: int, hidden: int) -> None:
        super().__init__(mixer, size, hidden)
        self.mixer_scale, self.feed_scale = LayerScale(size), LayerScale(size)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = states + self.mixer_scale(self.mixer(self.mixer_norm(states), lengths))
        answer: Tensor = states + self.feed_scale(self.feed_forward(self.feed_norm(states)))
        return answer


class ClassAttention(nn.Module):
    """A token looks at itself and at the patches; they do not look back and stay as they are."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = CrossAttention(size, heads), FeedForward(size, hidden)
        self.attention_norm, self.feed_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention_scale, self.feed_scale = LayerScale(size), LayerScale(size)

    def forward(self, token: Tensor, patches: Tensor) -> Tensor:
        places = self.attention_norm(torch.cat([token, patches], 1))
        token = token + self.attention_scale(self.attention(places[:, :1], places))
        answer: Tensor = token + self.feed_scale(self.feed_forward(self.feed_norm(token)))
        return answer


@system(
    "cait",
    group="vision",
    paper="Touvron et al. 2021, Going deeper with Image Transformers",
    recipe=Recipe(Digits, bar=0.95, steps=1500, tier=2, sizes={"layers": 4}),
)
class CaiT(PatchClassifier):
    """LayerScale, and class attention in the last layers. Talking heads are left out: no fused operator mixes heads."""

    Sizes: ClassVar[type[Sizes]] = CaitSizes
    block = LayerScaled

    def __init__(self, sizes: CaitSizes) -> None:
        super().__init__(sizes)
        self.positions = nn.Parameter(torch.randn(1, sizes.patches, sizes.size) * 0.02)
        self.first = nn.Parameter(torch.randn(1, 1, sizes.size) * 0.02)
        self.judging = nn.ModuleList(
            ClassAttention(sizes.size, sizes.heads, sizes.hidden) for _ in range(sizes.judging)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.stack(self.patches(pixels) + self.positions)
        token = self.first.expand(pixels.shape[0], -1, -1)
        for layer in self.judging:
            token = layer(token, patches)
        answer: Tensor = self.head(self.norm(token[:, 0]))
        return answer
