"""Export family of policies: a decoder over the episode so far."""

from __future__ import annotations

from torch import Tensor

from headwaiter.package.manifest import Policy
from headwaiter_export.families.decoder import DecoderDimensions
from headwaiter_export.families.policy_decoder import PolicyDecoderFamily
from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.zoo.families.base import ZooFamily
from headwaiter_export.zoo.model import Trajectories


class Actor(ZooFamily, PolicyDecoderFamily):
    def dimensions(self) -> DecoderDimensions:
        return DecoderDimensions(self.config.layers, self.config.heads, self.model.head_size())

    def timesteps(self) -> int:
        return int(self.config.timesteps)

    def policy(self) -> Policy:
        return Policy(
            state_size=self.config.state,
            action_size=self.config.actions,
            actions="discrete",
            context=self.config.context,
        )

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:  # noqa: ARG002
        trajectories = Trajectories(inputs["timesteps"], inputs["returns"], inputs["states"], inputs["actions"])
        hidden: Tensor = self.model.decode(inputs["kinds"], trajectories, positions)
        return hidden

    def actions(self, last: Tensor) -> Tensor:
        logits: Tensor = self.model.logits(last)
        return logits

    def run_original(self, episodes: dict[str, Tensor]) -> Tensor:
        returns = episodes["returns"].squeeze(2)
        logits: Tensor = self.model(
            Trajectories(episodes["timesteps"], returns, episodes["states"], episodes["actions"])
        )
        return logits
