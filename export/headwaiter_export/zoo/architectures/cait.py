from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.layers.attention import CrossAttention
from headwaiter_export.zoo.layers.blocks import FeedForward, PreNormBlock
from headwaiter_export.zoo.layers.patch_classifiers import PatchClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import ImageSizes, Sizes

_LAYER_SCALE_INIT = 0.1  # the value of the paper for shallow networks


class CaitSizes(ImageSizes):
    judging: PositiveInt = 2  # class-attention layers


class LayerScale(nn.Module):
    """Learned per-channel scale of a residual branch, initialized small so that deep stacks train from the start."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), _LAYER_SCALE_INIT))

    def forward(self, states: Tensor) -> Tensor:
        return states * self.weight


class LayerScaleBlock(PreNormBlock):
    def __init__(self, mixer: nn.Module, size: int, hidden: int) -> None:
        super().__init__(mixer, size, hidden)
        self.mixer_scale, self.feed_scale = LayerScale(size), LayerScale(size)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = states + self.mixer_scale(self.mixer(self.mixer_norm(states), lengths))
        output: Tensor = states + self.feed_scale(self.feed_forward(self.feed_norm(states)))
        return output


class ClassAttention(nn.Module):
    """The class token attends to itself and to the patches; the patches are not updated."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention, self.feed_forward = CrossAttention(size, heads), FeedForward(size, hidden)
        self.attention_norm, self.feed_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention_scale, self.feed_scale = LayerScale(size), LayerScale(size)

    def forward(self, token: Tensor, patches: Tensor) -> Tensor:
        normed = self.attention_norm(torch.cat([token, patches], 1))
        token = token + self.attention_scale(self.attention(normed[:, :1], normed))
        output: Tensor = token + self.feed_scale(self.feed_forward(self.feed_norm(token)))
        return output


@architecture(
    "cait",
    group="vision",
    paper="Touvron et al. 2021, Going deeper with Image Transformers",
    recipe=Recipe(Digits, target=0.95, steps=1500, tier=2, sizes={"layers": 4}),
)
class CaiT(PatchClassifier):
    """LayerScale, and class attention in the last layers. Talking heads are omitted because no fused operator mixes
    heads."""

    Sizes: ClassVar[type[Sizes]] = CaitSizes
    block = LayerScaleBlock

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
        scores: Tensor = self.head(self.norm(token[:, 0]))
        return scores
