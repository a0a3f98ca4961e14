from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.blocks import PreNormBlock
from headwaiter_export.zoo.layers.masks import mean
from headwaiter_export.zoo.layers.positions import sinusoids
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes, Sizes

_HALTING_THRESHOLD = 0.99  # a token halts once its cumulative halting probability exceeds this
_PONDER_COST_WEIGHT = 0.01  # weight of the ponder cost in the loss


class UniversalSizes(SequenceSizes):
    layers: PositiveInt = 4  # maximum number of steps of the shared block


class AdaptiveComputation(nn.Module):
    """Applies one block repeatedly with adaptive computation time (Graves 2016). After each step a token has a halting
    probability; it halts once these sum to one. Its output is the average of its states weighted by those
    probabilities; other tokens continue to attend to its last state."""

    positions: Tensor
    times: Tensor
    ponder_cost: Tensor | float = 0.0  # mean number of steps plus remainder per token, of the last training pass

    def __init__(self, sizes: UniversalSizes) -> None:
        super().__init__()
        self.steps = sizes.layers
        self.block = PreNormBlock(SelfAttention(sizes.size, sizes.heads), sizes.size, sizes.hidden)
        self.halting = nn.Linear(sizes.size, 1)
        nn.init.constant_(self.halting.bias, -1.0)  # so that tokens do not halt early at first
        self.register_buffer("positions", sinusoids(sizes.length, sizes.size), persistent=False)
        self.register_buffer("times", sinusoids(self.steps, sizes.size), persistent=False)

    def forward(self, states: Tensor, lengths: Tensor) -> Tensor:
        output = torch.zeros_like(states)
        halted = steps = remainder = torch.zeros_like(states[:, :, :1])
        for step in range(self.steps):
            updated = self.block(states + self.positions[: states.shape[1]] + self.times[step], lengths)
            running = halted <= _HALTING_THRESHOLD
            probability = self.halting(updated).sigmoid()
            halts = halted + probability > _HALTING_THRESHOLD if step < self.steps - 1 else torch.ones_like(running)
            weight = torch.where(running, torch.where(halts, 1 - halted, probability), 0.0)
            steps, remainder = steps + running, remainder + torch.where(running & halts, 1 - halted, 0.0)
            states, output, halted = torch.where(running, updated, states), output + weight * updated, halted + weight
        if self.training:
            self.ponder_cost = mean(steps + remainder, lengths).mean()
        return output


@architecture(
    "universal-transformer",
    group="other mixing, depth, positions",
    paper="Dehghani et al. 2018, Universal Transformers",
    recipe=Recipe(ListOps, target=0.9, steps=2000, tier=2),
)
class UniversalTransformer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = UniversalSizes

    def make_positions(self, sizes: SequenceSizes) -> None:  # noqa: ARG002
        """The block adds position and step embeddings at every step."""
        return

    def make_stack(self, sizes: SequenceSizes) -> nn.Module:
        assert isinstance(sizes, UniversalSizes)
        return AdaptiveComputation(sizes)

    def extra_loss(self) -> Tensor | float:
        assert isinstance(self.stack, AdaptiveComputation)
        return _PONDER_COST_WEIGHT * self.stack.ponder_cost
