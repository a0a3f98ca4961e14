"""Families that decode actions: an environment step is three tokens, and the second one predicts the action."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from torch import Tensor

from headwaiter.package.manifest import Policy
from headwaiter_export.families.decoder import DecoderFamily
from headwaiter_export.tracing.graph import TensorSpec


class PolicyDecoderFamily(DecoderFamily):
    """An environment step is the tokens return-to-go, state and action; `kinds` gives the type of each token.

    Discrete actions are one-hot inputs and logits as outputs; continuous actions are vectors in both directions.
    """

    task = "policy"

    @abstractmethod
    def policy(self) -> Policy: ...

    @abstractmethod
    def timesteps(self) -> int:
        """Return the number of steps of the longest episode."""

    @abstractmethod
    def actions(self, last: Tensor) -> Tensor:
        """Return action logits or vectors [rows, size] for the hidden states of state tokens."""

    @abstractmethod
    def run_original(self, episodes: dict[str, Tensor]) -> Tensor:
        """Run the original model on whole episodes without a cache; returns actions [rows, length, size].

        Episodes have `timesteps` [rows, length], `returns` [rows, length, 1], `states` and `actions`
        [rows, length, size].
        """

    def value_range(self, actions: np.ndarray) -> float:
        """Return the range to which differences between actions are relative."""
        return float(actions.max() - actions.min())

    def limits(self) -> dict[str, int]:
        return {"timesteps": self.timesteps(), "max_length": 3 * self.timesteps()}

    def step_inputs(self) -> dict[str, TensorSpec]:
        axes, policy = ("rows", "steps"), self.policy()
        return {
            "kinds": TensorSpec(torch.int64, axes),
            "timesteps": TensorSpec(torch.int64, axes),
            "returns": TensorSpec(torch.float32, axes),
            "states": TensorSpec(torch.float32, (*axes, policy.state_size)),
            "actions": TensorSpec(torch.float32, (*axes, policy.action_size)),
        }

    def step_outputs(self) -> dict[str, TensorSpec]:
        return {self.output_name(): TensorSpec(torch.float32, ("rows", self.policy().action_size))}

    def output(self, last: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        return {self.output_name(): self.actions(last).float()}

    def output_name(self) -> str:
        """Return the name of the decoder output: `logits` of discrete actions, or a continuous `action`."""
        return "logits" if self.policy().actions == "discrete" else "action"
