"""A few vectors of the model's own, through which all of a sequence passes: the cost grows with its length alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.kit.blocks import FeedForward
from export.zoo.kit.masks import blanked
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.sizes import SequenceSizes


class SlotSizes(SequenceSizes):
    slots: PositiveInt = 8


class Slots(nn.Module):
    """Learned, the same for every row at first. Layers take slots, states and lengths, and give slots and states."""

    def __init__(self, slots: Tensor, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.slots, self.layers = nn.Parameter(slots), nn.ModuleList(layers)

    def forward(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        slots = self.slots.expand(states.shape[0], -1, -1)
        for layer in self.layers:
            slots, states = layer(slots, states, lengths)
        return slots, states


class Counted(nn.Module):
    """States [rows, count + 1, size] of so many things of which facts are known. Each says which it is; the last is the
    sum of what each has to add, since a mean, which attention takes, does not hold how many there were (Zaheer et al.
    2017, Deep Sets)."""

    def __init__(self, facts: int, count: int, size: int, hidden: int) -> None:
        super().__init__()
        self.reads, self.adds = FeedForward(facts, hidden, size), FeedForward(size, hidden)
        self.names = nn.Parameter(torch.randn(count, size) * 0.02)

    def forward(self, facts: Tensor) -> Tensor:
        states = self.reads(facts) + self.names
        return torch.cat([states, self.adds(states).sum(1, keepdim=True)], 1)


class SlotClassifier(SequenceClassifier):
    spread = 1.0  # of the slots at first

    @abstractmethod
    def make_layer(self, sizes: Any) -> nn.Module: ...

    @abstractmethod
    def summary(self, slots: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
        """What is judged [rows, size]: of either, or of both."""

    def make_stack(self, sizes: Any) -> nn.Module:
        slots = torch.randn(1, sizes.slots, sizes.size) * self.spread
        return Slots(slots, (self.make_layer(sizes) for _ in range(sizes.layers)))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        slots, states = self.stack(blanked(self.embedded(tokens), lengths), lengths)
        answer: Tensor = self.head(self.summary(slots, states, lengths))
        return answer
