from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter.package.manifest import RETURN, STATE
from headwaiter_export.zoo.data.cartpole import CartPole
from headwaiter_export.zoo.layers.decoders import DecoderBlock
from headwaiter_export.zoo.layers.positions import LearnedPositions
from headwaiter_export.zoo.model import Actor, Trajectories
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import ActorSizes, Sizes


class DecisionSizes(ActorSizes):
    unit: PositiveInt = 100  # returns are divided by this number


@architecture(
    "decision-transformer",
    group="reinforcement learning",
    paper="Chen et al. 2021, Decision Transformer: Reinforcement Learning via Sequence Modeling",
    recipe=Recipe(CartPole, target=475, steps=400),
)
class DecisionTransformer(Actor):
    """Predicts the action that was taken at a state, conditioned on the return that followed; at inference a high
    target return selects good actions."""

    Sizes: ClassVar[type[Sizes]] = DecisionSizes

    def __init__(self, sizes: DecisionSizes) -> None:
        super().__init__(sizes)
        self.returns, self.states = nn.Linear(1, sizes.size), nn.Linear(sizes.state, sizes.size)
        self.actions = nn.Linear(sizes.actions, sizes.size)
        self.times = LearnedPositions(sizes.timesteps, sizes.size)
        self.blocks = nn.ModuleList(
            DecoderBlock(sizes.size, sizes.heads, sizes.hidden, layer, with_cross_attention=False)
            for layer in range(sizes.layers)
        )
        self.first_norm, self.norm = nn.LayerNorm(sizes.size), nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.actions)

    def _embed(self, trajectories: Trajectories) -> tuple[Tensor, Tensor, Tensor]:
        """Embed return-to-go, state and action of each step as tokens."""
        times = self.times(trajectories.timesteps)
        returns_to_go = self.returns(trajectories.returns[:, :, None] / self.sizes.unit)
        return (
            returns_to_go + times,
            self.states(trajectories.states) + times,
            self.actions(trajectories.actions) + times,
        )

    def _blocks(self, tokens: Tensor) -> Tensor:
        hidden = self.first_norm(tokens)
        for block in self.blocks:
            hidden = block(hidden, None, None)
        output: Tensor = self.norm(hidden)
        return output

    def decode(self, kinds: Tensor, trajectories: Trajectories, positions: Tensor) -> Tensor:  # noqa: ARG002
        returns_to_go, state, action = self._embed(trajectories)
        kinds = kinds[:, :, None]
        return self._blocks(torch.where(kinds == RETURN, returns_to_go, torch.where(kinds == STATE, state, action)))

    def logits(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, trajectories: Trajectories) -> Tensor:
        hidden = self._blocks(torch.stack(self._embed(trajectories), 2).flatten(1, 2))
        return self.logits(hidden[:, STATE::3])
