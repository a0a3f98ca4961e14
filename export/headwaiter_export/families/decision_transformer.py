from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwaiter.package.manifest import RETURN, STATE, Policy
from headwaiter_export.families.decoder import DecoderDimensions
from headwaiter_export.families.family import family
from headwaiter_export.families.policy_decoder import PolicyDecoderFamily
from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.tracing.cache import build_cache


@family("decision_transformer")
class DecisionTransformer(PolicyDecoderFamily):
    """Policies with continuous actions."""

    transformers_class = "DecisionTransformerModel"

    def dimensions(self) -> DecoderDimensions:
        return DecoderDimensions(self.config.n_layer, self.config.n_head, self.config.hidden_size // self.config.n_head)

    def timesteps(self) -> int:
        return int(self.config.max_ep_len)

    def policy(self) -> Policy:
        return Policy(
            state_size=self.config.state_dim,
            action_size=self.config.act_dim,
            actions="continuous",
            context=self.config.n_positions // 3,
        )

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:
        kinds = inputs["kinds"][:, :, None]
        embedded = torch.where(
            kinds == RETURN,
            self.model.embed_return(inputs["returns"][:, :, None]),
            torch.where(
                kinds == STATE, self.model.embed_state(inputs["states"]), self.model.embed_action(inputs["actions"])
            ),
        )
        hidden: Tensor = self.model.encoder(
            inputs_embeds=self.model.embed_ln(embedded + self.model.embed_timestep(inputs["timesteps"])),
            position_ids=torch.zeros_like(positions),  # the model uses only timestep embeddings
            past_key_values=build_cache(trace_context),
            use_cache=True,
        ).last_hidden_state
        return hidden

    def actions(self, last: Tensor) -> Tensor:
        actions: Tensor = self.model.predict_action(last)
        return actions

    def run_original(self, episodes: dict[str, Tensor]) -> Tensor:
        actions: Tensor = self.model(
            states=episodes["states"],
            actions=episodes["actions"],
            rewards=None,
            returns_to_go=episodes["returns"],
            timesteps=episodes["timesteps"],
        ).action_preds
        return actions

    def value_range(self, actions: np.ndarray) -> float:
        return 2.0 if self.config.action_tanh else super().value_range(actions)
