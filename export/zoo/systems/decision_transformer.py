from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.cartpole import CartPole
from export.zoo.kit.decoders import DecoderBlock
from export.zoo.kit.positions import Learned
from export.zoo.model import Actor, Moments
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import ActorSizes, Sizes
from service.package import RETURN, STATE


class DecisionSizes(ActorSizes):
    unit: PositiveInt = 100  # of returns: the model reads how many of these are to go


@system(
    "decision-transformer",
    group="decisions",
    paper="Chen et al. 2021, Decision Transformer: Reinforcement Learning via Sequence Modeling",
    recipe=Recipe(CartPole, bar=475, steps=400),
)
class DecisionTransformer(Actor):
    """Learns what was done in moments that brought such a return; asked for a high one, it does what brings it."""

    Sizes: ClassVar[type[Sizes]] = DecisionSizes

    def __init__(self, sizes: DecisionSizes) -> None:
        super().__init__(sizes)
        self.returns, self.states = nn.Linear(1, sizes.size), nn.Linear(sizes.state, sizes.size)
        self.actions = nn.Linear(sizes.actions, sizes.size)
        self.times = Learned(sizes.timesteps, sizes.size)
        self.blocks = nn.ModuleList(
            DecoderBlock(sizes.size, sizes.heads, sizes.hidden, layer, crosses=False) for layer in range(sizes.layers)
        )
        self.first_norm, self.norm = nn.LayerNorm(sizes.size), nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.actions)

    def _embedded(self, moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
        """Return, state and action of each moment as tokens."""
        times = self.times(moments.timesteps)
        to_go = self.returns(moments.returns[:, :, None] / self.sizes.unit)
        return to_go + times, self.states(moments.states) + times, self.actions(moments.actions) + times

    def _blocks(self, tokens: Tensor) -> Tensor:
        hidden = self.first_norm(tokens)
        for block in self.blocks:
            hidden = block(hidden, None, None)
        answer: Tensor = self.norm(hidden)
        return answer

    def decode(self, kinds: Tensor, moments: Moments, positions: Tensor) -> Tensor:  # noqa: ARG002
        to_go, state, action = self._embedded(moments)
        kinds = kinds[:, :, None]
        return self._blocks(torch.where(kinds == RETURN, to_go, torch.where(kinds == STATE, state, action)))

    def logits(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, moments: Moments) -> Tensor:
        hidden = self._blocks(torch.stack(self._embedded(moments), 2).flatten(1, 2))
        return self.logits(hidden[:, STATE::3])
