from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import PositiveFloat, model_validator
from torch import Tensor, nn

from headwaiter.package.manifest import STATE
from headwaiter_export.zoo.data.masked_cartpole import MaskedCartPole
from headwaiter_export.zoo.layers.attention import CausalAttention
from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.positions import LearnedPositions
from headwaiter_export.zoo.model import QNetwork, Trajectories
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import ActorSizes, Sizes

_TOKENS_PER_STEP = 3  # return-to-go, state and action


class DtqnSizes(ActorSizes):
    units: tuple[PositiveFloat, ...] = ()  # each number of a state is divided by its unit

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        if len(self.units) not in (0, self.state):
            raise ValueError(
                f"units has {len(self.units)} values; it must have {self.state}, one per number of a state, or none"
            )
        return self


@architecture(
    "dtqn",
    group="reinforcement learning",
    paper="Esslinger et al. 2022, Deep Transformer Q-Networks for Partially Observable Reinforcement Learning",
    recipe=Recipe(MaskedCartPole, target=300, steps=4000),
)
class DeepTransformerQNetwork(QNetwork):
    """Action values at every step, from the states up to that step. The return-to-go and action tokens of the policy
    interface are masked."""

    Sizes: ClassVar[type[Sizes]] = DtqnSizes
    units: Tensor

    def __init__(self, sizes: DtqnSizes) -> None:
        super().__init__(sizes)
        self.register_buffer("units", torch.tensor(sizes.units or (1.0,) * sizes.state), persistent=False)
        self.states, self.places = nn.Linear(sizes.state, sizes.size), LearnedPositions(sizes.context, sizes.size)
        self.stack = Stack(
            PreNormBlock(CausalAttention(sizes.size, sizes.heads, layer), sizes.size, sizes.hidden)
            for layer in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.actions)

    def head_size(self) -> int:
        return super().head_size() + 1  # one extra number masks keys

    def decode(self, kinds: Tensor, trajectories: Trajectories, positions: Tensor) -> Tensor:
        return self._encode(trajectories.states, positions // _TOKENS_PER_STEP, kinds != STATE)

    def logits(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.head(hidden)
        return values

    def forward(self, trajectories: Trajectories) -> Tensor:
        return self.logits(self._encode(trajectories.states, torch.arange(trajectories.states.shape[1]), None))

    def _encode(self, states: Tensor, positions: Tensor, masked_keys: Tensor | None) -> Tensor:
        hidden: Tensor = self.norm(self.stack(self.states(states / self.units) + self.places(positions), masked_keys))
        return hidden
