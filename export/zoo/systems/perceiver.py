from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.attention import CrossAttention, SelfAttention
from export.zoo.kit.blocks import FeedForward, PreNorm
from export.zoo.kit.slots import SlotClassifier, SlotSizes
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes


class PerceiverSizes(SlotSizes):
    slots: PositiveInt = 16


class Glance(nn.Module):
    """Slots attend to the input, then to each other."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.cross, self.cross_feed = CrossAttention(size, heads), FeedForward(size, hidden)
        self.slot_norm, self.input_norm, self.feed_norm = (nn.LayerNorm(size) for _ in range(3))
        self.inner = PreNorm(SelfAttention(size, heads), size, hidden)

    def forward(self, slots: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        slots = slots + self.cross(self.slot_norm(slots), self.input_norm(states), lengths)
        slots = slots + self.cross_feed(self.feed_norm(slots))
        return self.inner(slots), states


@system(
    "perceiver",
    group="cheaper attention",
    paper="Jaegle et al. 2021, Perceiver: General Perception with Iterative Attention",
    recipe=Recipe(ListOps, bar=0.88, steps=2000, tier=2),
)
class Perceiver(SlotClassifier):
    """Every glance has weights of its own; the paper may share them. The answer is read from the mean slot."""

    Sizes: ClassVar[type[Sizes]] = PerceiverSizes
    spread = 0.02

    def make_layer(self, sizes: PerceiverSizes) -> nn.Module:
        return Glance(sizes.size, sizes.heads, sizes.hidden)

    def summary(self, slots: Tensor, states: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        return self.norm(slots).mean(1)
