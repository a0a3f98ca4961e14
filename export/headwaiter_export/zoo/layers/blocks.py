"""Residual blocks around token mixers: norms, residual connections and feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

Mixer = Callable[[Tensor, Tensor | None], Tensor]
"""Maps states [rows, length, size] and the row lengths to states of the same shape."""


class FeedForward(nn.Sequential):
    def __init__(self, size: int, hidden: int, out: int | None = None) -> None:
        super().__init__(nn.Linear(size, hidden), nn.GELU(), nn.Linear(hidden, out or size))


class PreNormBlock(nn.Module):
    """Normalizes before mixing, which trains deep stacks without a long warm-up."""

    def __init__(self, mixer: nn.Module, size: int, hidden: int) -> None:
        super().__init__()
        self.mixer, self.feed_forward = mixer, FeedForward(size, hidden)
        self.mixer_norm, self.feed_norm = nn.LayerNorm(size), nn.LayerNorm(size)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = states + self.mixer(self.mixer_norm(states), lengths)
        output: Tensor = states + self.feed_forward(self.feed_norm(states))
        return output


class PostNormBlock(PreNormBlock):
    """Normalizes after the residual sum, as in Vaswani et al. 2017 and BERT."""

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        states = self.mixer_norm(states + self.mixer(states, lengths))
        output: Tensor = self.feed_norm(states + self.feed_forward(states))
        return output


class ReversibleBlock(PreNormBlock):
    """Gomez et al. 2017: two streams, each updated by a function of the other, so that inputs can be recomputed from
    outputs."""

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        first, second = states.chunk(2, 2)
        first = first + self.mixer(self.mixer_norm(second), lengths)
        second = second + self.feed_forward(self.feed_norm(first))
        return torch.cat([first, second], 2)

    def inverse(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the input that produced the output `states`."""
        first, second = states.chunk(2, 2)
        second = second - self.feed_forward(self.feed_norm(first))
        return torch.cat([first - self.mixer(self.mixer_norm(second), lengths), second], 2)


class Stack(nn.ModuleList):
    """Applies blocks in sequence."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__(blocks)

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        for block in self:
            states = block(states, lengths)
        return states


class ReversibleStack(Stack):
    """Stack of reversible blocks: both streams start as the input states and are averaged at the end."""

    def forward(self, states: Tensor, lengths: Tensor | None = None) -> Tensor:
        first, second = super().forward(torch.cat([states, states], 2), lengths).chunk(2, 2)
        return (first + second) / 2
