from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.attention import CrossAttention, SelfAttention
from headwaiter_export.zoo.layers.blocks import FeedForward, PreNormBlock
from headwaiter_export.zoo.layers.slots import SlotClassifier, SlotSizes
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import Sizes


class PerceiverSizes(SlotSizes):
    slots: PositiveInt = 16


class PerceiverLayer(nn.Module):
    """Slots attend to the input, then to each other."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.cross, self.cross_feed = CrossAttention(size, heads), FeedForward(size, hidden)
        self.slot_norm, self.input_norm, self.feed_norm = (nn.LayerNorm(size) for _ in range(3))
        self.inner = PreNormBlock(SelfAttention(size, heads), size, hidden)

    def forward(self, slots: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        slots = slots + self.cross(self.slot_norm(slots), self.input_norm(states), lengths)
        slots = slots + self.cross_feed(self.feed_norm(slots))
        return self.inner(slots), states


@architecture(
    "perceiver",
    group="efficient attention",
    paper="Jaegle et al. 2021, Perceiver: General Perception with Iterative Attention",
    recipe=Recipe(ListOps, target=0.88, steps=2000, tier=2),
)
class Perceiver(SlotClassifier):
    """Layers do not share weights, which the paper allows. Classifies from the mean slot."""

    Sizes: ClassVar[type[Sizes]] = PerceiverSizes
    slot_init_std = 0.02

    def make_layer(self, sizes: PerceiverSizes) -> nn.Module:
        return PerceiverLayer(sizes.size, sizes.heads, sizes.hidden)

    def summary(self, slots: Tensor, states: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        return self.norm(slots).mean(1)
