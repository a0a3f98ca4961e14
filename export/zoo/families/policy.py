"""Systems that act: a decoder over the episode so far."""

from __future__ import annotations

from torch import Tensor

from export.attention import Scene
from export.decoding import Geometry
from export.policies import PolicyDecoder
from export.zoo.families.base import OfZoo
from export.zoo.model import Moments
from service.package import Policy


class Actor(OfZoo, PolicyDecoder):
    def geometry(self) -> Geometry:
        return Geometry(self.config.layers, self.config.heads, self.model.head_size())

    def timesteps(self) -> int:
        return int(self.config.timesteps)

    def policy(self) -> Policy:
        return Policy(
            state_size=self.config.state,
            action_size=self.config.actions,
            actions="discrete",
            context=self.config.context,
        )

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:  # noqa: ARG002
        moments = Moments(inputs["timesteps"], inputs["returns"], inputs["states"], inputs["actions"])
        hidden: Tensor = self.model.decode(inputs["kinds"], moments, positions)
        return hidden

    def actions(self, last: Tensor) -> Tensor:
        logits: Tensor = self.model.logits(last)
        return logits

    def original(self, episodes: dict[str, Tensor]) -> Tensor:
        returns = episodes["returns"].squeeze(2)
        logits: Tensor = self.model(Moments(episodes["timesteps"], returns, episodes["states"], episodes["actions"]))
        return logits
