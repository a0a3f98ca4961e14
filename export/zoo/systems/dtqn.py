from __future__ import annotations

from typing import ClassVar, Self

import torch
from pydantic import PositiveFloat, model_validator
from torch import Tensor, nn

from export.zoo.data.blind_cartpole import BlindCartPole
from export.zoo.kit.attention import CausalAttention
from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.positions import Learned
from export.zoo.model import Moments, Valuer
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import ActorSizes, Sizes
from service.package import STATE

_TOKENS = 3  # of a moment


class DtqnSizes(ActorSizes):
    units: tuple[PositiveFloat, ...] = ()  # of a state's numbers: the model reads how many of these they are

    @model_validator(mode="after")
    def _every_number_has_a_unit(self) -> Self:
        if len(self.units) not in (0, self.state):
            raise ValueError(f"units are {len(self.units)} and a state has {self.state} numbers: one each, or none")
        return self


@system(
    "dtqn",
    group="decisions",
    paper="Esslinger et al. 2022, Deep Transformer Q-Networks for Partially Observable Reinforcement Learning",
    recipe=Recipe(BlindCartPole, bar=300, steps=4000),
)
class DeepTransformerQNetwork(Valuer):
    """The value of each action at every moment, from what was seen up to then. Returns asked for and actions taken come
    in as tokens, as they do to every policy, and are left unread."""

    Sizes: ClassVar[type[Sizes]] = DtqnSizes
    units: Tensor

    def __init__(self, sizes: DtqnSizes) -> None:
        super().__init__(sizes)
        self.register_buffer("units", torch.tensor(sizes.units or (1.0,) * sizes.state), persistent=False)
        self.states, self.places = nn.Linear(sizes.state, sizes.size), Learned(sizes.context, sizes.size)
        self.stack = Stack(
            PreNorm(CausalAttention(sizes.size, sizes.heads, layer), sizes.size, sizes.hidden)
            for layer in range(sizes.layers)
        )
        self.norm = nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.actions)

    def head_size(self) -> int:
        return super().head_size() + 1  # for what marks keys as unread

    def decode(self, kinds: Tensor, moments: Moments, positions: Tensor) -> Tensor:
        return self._read(moments.states, positions // _TOKENS, kinds != STATE)

    def logits(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.head(hidden)
        return values

    def forward(self, moments: Moments) -> Tensor:
        return self.logits(self._read(moments.states, torch.arange(moments.states.shape[1]), None))

    def _read(self, states: Tensor, places: Tensor, unread: Tensor | None) -> Tensor:
        hidden: Tensor = self.norm(self.stack(self.states(states / self.units) + self.places(places), unread))
        return hidden
