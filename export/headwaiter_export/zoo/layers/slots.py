"""Latent slots: a few learned vectors exchange information with the sequence, at a cost linear in its length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.layers.blocks import FeedForward
from headwaiter_export.zoo.layers.masks import zero_padding
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.sizes import SequenceSizes


class SlotSizes(SequenceSizes):
    slots: PositiveInt = 8


class Slots(nn.Module):
    """Learned initial slots, the same for every row. Layers map slots, states and lengths to new slots and states."""

    def __init__(self, slots: Tensor, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.slots, self.layers = nn.Parameter(slots), nn.ModuleList(layers)

    def forward(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        slots = self.slots.expand(states.shape[0], -1, -1)
        for layer in self.layers:
            slots, states = layer(slots, states, lengths)
        return slots, states


class ObjectSetEncoder(nn.Module):
    """Encodes `count` objects as states [rows, count + 1, size]. The last state is a sum over the objects, because
    attention averages and loses their number (Zaheer et al. 2017, Deep Sets)."""

    def __init__(self, features: int, count: int, size: int, hidden: int) -> None:
        super().__init__()
        self.reads, self.adds = FeedForward(features, hidden, size), FeedForward(size, hidden)
        self.names = nn.Parameter(torch.randn(count, size) * 0.02)

    def forward(self, features: Tensor) -> Tensor:
        states = self.reads(features) + self.names
        return torch.cat([states, self.adds(states).sum(1, keepdim=True)], 1)


class SlotClassifier(SequenceClassifier):
    slot_init_std = 1.0  # standard deviation of the initial slots

    @abstractmethod
    def make_layer(self, sizes: Any) -> nn.Module: ...

    @abstractmethod
    def summary(self, slots: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        """Return the vector [rows, size] to classify, from the slots, the states or both."""

    def make_stack(self, sizes: Any) -> nn.Module:
        slots = torch.randn(1, sizes.slots, sizes.size) * self.slot_init_std
        return Slots(slots, (self.make_layer(sizes) for _ in range(sizes.layers)))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        slots, states = self.stack(zero_padding(self.embed_tokens(tokens), lengths), lengths)
        scores: Tensor = self.head(self.summary(slots, states, lengths))
        return scores
