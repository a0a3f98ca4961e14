from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from export.attention import Scene
from export.cache import cache_of
from export.decoding import Geometry
from export.family import family
from export.policies import PolicyDecoder
from service.package import RETURN, STATE, Policy


@family("decision_transformer")
class DecisionTransformer(PolicyDecoder):
    """Actions are continuous."""

    head = "DecisionTransformerModel"

    def geometry(self) -> Geometry:
        return Geometry(self.config.n_layer, self.config.n_head, self.config.hidden_size // self.config.n_head)

    def timesteps(self) -> int:
        return int(self.config.max_ep_len)

    def policy(self) -> Policy:
        return Policy(
            state_size=self.config.state_dim,
            action_size=self.config.act_dim,
            actions="continuous",
            context=self.config.n_positions // 3,
        )

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, scene: Scene) -> Tensor:
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
            position_ids=torch.zeros_like(positions),  # the model tells time by timesteps alone
            past_key_values=cache_of(scene),
            use_cache=True,
        ).last_hidden_state
        return hidden

    def actions(self, last: Tensor) -> Tensor:
        chosen: Tensor = self.model.predict_action(last)
        return chosen

    def original(self, episodes: dict[str, Tensor]) -> Tensor:
        actions: Tensor = self.model(
            states=episodes["states"],
            actions=episodes["actions"],
            rewards=None,
            returns_to_go=episodes["returns"],
            timesteps=episodes["timesteps"],
        ).action_preds
        return actions

    def spread(self, actions: np.ndarray) -> float:
        return 2.0 if self.config.action_tanh else super().spread(actions)
