from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.attention import CrossAttention
from headwaiter_export.zoo.layers.blocks import FeedForward
from headwaiter_export.zoo.layers.masks import mean
from headwaiter_export.zoo.layers.slots import SlotClassifier, SlotSizes
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import Sizes


class WorkspaceLayer(nn.Module):
    """Tokens compete to write into the slots, gates update the slots, and the slots are broadcast to all tokens."""

    def __init__(self, size: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.write, self.broadcast = CrossAttention(size, heads), CrossAttention(size, heads)
        self.gates = nn.Linear(2 * size, 2 * size)
        self.feed_forward = FeedForward(size, hidden)
        self.token_norm, self.slot_norm, self.feed_norm = (nn.LayerNorm(size) for _ in range(3))

    def forward(self, slots: Tensor, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.token_norm(states)
        written = self.write(self.slot_norm(slots), tokens, lengths)
        keep_gate, write_gate = self.gates(torch.cat([slots, written], 2)).sigmoid().chunk(2, 2)
        slots = keep_gate * slots + write_gate * written.tanh()
        states = states + self.broadcast(tokens, self.slot_norm(slots))
        return slots, states + self.feed_forward(self.feed_norm(states))


@architecture(
    "shared-workspace",
    group="efficient attention",
    paper="Goyal et al. 2021, Coordination Among Neural Modules Through a Shared Global Workspace",
    recipe=Recipe(ListOps, target=0.85, steps=2000, tier=2),
)
class SharedWorkspace(SlotClassifier):
    """Tokens exchange information only through the slots, which pass from layer to layer. Writing uses a softmax over
    all tokens instead of the top k, because the fused operator has no top k."""

    Sizes: ClassVar[type[Sizes]] = SlotSizes

    def make_layer(self, sizes: SlotSizes) -> nn.Module:
        return WorkspaceLayer(sizes.size, sizes.heads, sizes.hidden)

    def summary(self, slots: Tensor, states: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        return mean(self.norm(states), lengths)
