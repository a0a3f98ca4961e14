from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.attention import CrossAttention
from export.zoo.kit.blocks import FeedForward
from export.zoo.kit.masks import mean
from export.zoo.kit.slots import SlotClassifier, SlotSizes
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes


class Exchange(nn.Module):
    """Tokens compete to write into the slots; gates decide what a slot keeps; slots are broadcast to all tokens."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.write, self.broadcast = CrossAttention(size, heads), CrossAttention(size, heads)
        self.gates = nn.Linear(2 * size, 2 * size)
        self.feed_forward = FeedForward(size, hidden)
        self.token_norm, self.slot_norm, self.feed_norm = (nn.LayerNorm(size) for _ in range(3))

    def forward(self, slots: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.token_norm(states)
        written = self.write(self.slot_norm(slots), tokens, lengths)
        keep, take = self.gates(torch.cat([slots, written], 2)).sigmoid().chunk(2, 2)
        slots = keep * slots + take * written.tanh()
        states = states + self.broadcast(tokens, self.slot_norm(slots))
        return slots, states + self.feed_forward(self.feed_norm(states))


@system(
    "shared-workspace",
    group="cheaper attention",
    paper="Goyal et al. 2021, Coordination Among Neural Modules Through a Shared Global Workspace",
    recipe=Recipe(ListOps, bar=0.85, steps=2000, tier=2),
)
class SharedWorkspace(SlotClassifier):
    """The slots pass from layer to layer; tokens meet only there. Writing is a softmax over all tokens, not over the
    best few: the fused operator does it whole."""

    Sizes: ClassVar[type[Sizes]] = SlotSizes

    def make_layer(self, sizes: SlotSizes) -> nn.Module:
        return Exchange(sizes.size, sizes.heads, sizes.hidden)

    def summary(self, slots: Tensor, states: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        return mean(self.norm(states), lengths)
