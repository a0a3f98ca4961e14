from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PreNorm
from export.zoo.kit.masks import mean
from export.zoo.kit.positions import sinusoids
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes, Sizes

_ENOUGH = 0.99  # of halting probability, after which a token rests
_PONDERING = 0.01  # what a step of a token costs in the loss


class UniversalSizes(SequenceSizes):
    layers: PositiveInt = 4  # steps of the one block, at most


class Pondering(nn.Module):
    """One block, applied again and again. Graves 2016, adaptive computation time: after each step a token halts with
    some probability, and when these add up to one it rests; its answer is the average of its states, weighed by them.
    Others go on and see it as it rested."""

    places: Tensor
    times: Tensor
    ponder: Tensor | float = 0.0  # steps and remainders of the mean token, in the last training pass

    def __init__(self, sizes: UniversalSizes) -> None:
        super().__init__()
        self.steps = sizes.layers
        self.block = PreNorm(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden)
        self.halting = nn.Linear(sizes.size, 1)
        nn.init.constant_(self.halting.bias, -1.0)  # so that at first no token rests early
        self.register_buffer("places", sinusoids(sizes.length, sizes.size), persistent=False)
        self.register_buffer("times", sinusoids(self.steps, sizes.size), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        answer = torch.zeros_like(states)
        halted = steps = remainder = torch.zeros_like(states[:, :, :1])
        for step in range(self.steps):
            moved = self.block(states + self.places[: states.shape[1]] + self.times[step], lengths)
            running = halted <= _ENOUGH
            probability = self.halting(moved).sigmoid()
            ends = halted + probability > _ENOUGH if step < self.steps - 1 else torch.ones_like(running)
            share = torch.where(running, torch.where(ends, 1 - halted, probability), 0.0)
            steps, remainder = steps + running, remainder + torch.where(running & ends, 1 - halted, 0.0)
            states, answer, halted = torch.where(running, moved, states), answer + share * moved, halted + share
        if self.training:
            self.ponder = mean(steps + remainder, lengths).mean()
        return answer


@system(
    "universal-transformer",
    group="other mixing, depth, positions",
    paper="Dehghani et al. 2018, Universal Transformers",
    recipe=Recipe(ListOps, bar=0.9, steps=2000, tier=2),
)
class UniversalTransformer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = UniversalSizes

    def make_positions(self, sizes: SequenceSizes) -> None:  # noqa: ARG002
        """The block adds them, with the time, at every step."""
        return

    def make_stack(self, sizes: SequenceSizes) -> nn.Module:
        assert isinstance(sizes, UniversalSizes)
        return Pondering(sizes)

    def extra_loss(self) -> Tensor | float:
        assert isinstance(self.stack, Pondering)
        return _PONDERING * self.stack.ponder
