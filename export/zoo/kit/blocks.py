"""What surrounds a mixer of tokens: norms, residual sums, feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Mixer = Callable[[Tensor, Tensor | None], Tensor]
"""States [rows, length, size] and the lengths of rows to states of the same shape."""


class FeedForward(nn.Sequential):
    def __init__(self, size: int, hidden: int, out: int | None = None) -> None:
        super().__init__(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, out or size))


class PreNorm(nn.Module):
    """Norm, then mix, then add: deep stacks learn without a warm-up."""

    def __init__(self, mixer: nn.Module, size: int, hidden: int) -> None:
        super().__init__()
        self.mixer, self.feed_forward = mixer, FeedForward(size, hidden)
        self.mixer_norm, self.feed_norm = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = states + self.mixer(self.mixer_norm(states), lengths)
        answer: Tensor = states + self.feed_forward(self.feed_norm(states))
        return answer


class PostNorm(PreNorm):
    """Mix, add, then norm: as Vaswani et al. 2017 and BERT have it."""

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = self.mixer_norm(states + self.mixer(states, lengths))
        answer: Tensor = self.feed_norm(states + self.feed_forward(states))
        return answer


class Reversible(PreNorm):
    """Gomez et al. 2017: two streams, each changed by a function of the other, so that inputs follow from outputs."""

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        first, second = states.chunk(2, 2)
        first = first + self.mixer(self.mixer_norm(second), lengths)
        second = second + self.feed_forward(self.feed_norm(first))
        return torch.cat([first, second], 2)

    def undone(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The input that gave this output."""
        first, second = states.chunk(2, 2)
        second = second - self.feed_forward(self.feed_norm(first))
        return torch.cat([first - self.mixer(self.mixer_norm(second), lengths), second], 2)


class Stack(nn.ModuleList):
    """Blocks one after another."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__(blocks)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        for block in self:
            states = block(states, lengths)
        return states


class TwoStreams(Stack):
    """Reversible blocks: both streams begin as the states, and end as their average."""

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        first, second = super().forward(torch.cat([states, states], 2), lengths).chunk(2, 2)
        return (first + second) / 2
