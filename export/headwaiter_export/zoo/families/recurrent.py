"""Export families of recurrent text models: one token per step, every state replaced by each step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from headwaiter_export.tracing.attention import TraceContext
from headwaiter_export.tracing.graph import TensorSpec
from headwaiter_export.zoo.checkpoint import Checkpoint
from headwaiter_export.zoo.families import autoregressive
from headwaiter_export.zoo.layers.attention import KeyValue
from headwaiter_export.zoo.recurrent import EncoderOutput


class RecurrentModel(autoregressive.EncoderDecoder):
    single_token_steps = True

    def __init__(self, checkpoint: Checkpoint, folder: Path) -> None:
        super().__init__(checkpoint, folder)
        self.encoder_initialised_states = tuple(self.model.state_shapes())

    def cross_attention_inputs(self) -> dict[str, TensorSpec]:
        cross_attention = self.model.cross_attention()
        if cross_attention is None:
            return {}
        return {
            f"cross.0.{part}": TensorSpec(torch.float32, ("rows", 1, "source", size))
            for part, size in zip(("key", "value"), cross_attention.sizes, strict=True)
        }

    def initial_states(self, hidden: EncoderOutput, inputs: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        return hidden.states

    def cross(self, layer: int, hidden: EncoderOutput) -> KeyValue:  # noqa: ARG002
        keys_values: KeyValue = self.model.cross_attention().project_keys_values(hidden.memory)
        return keys_values

    def decode(self, inputs: dict[str, Tensor], positions: Tensor, trace_context: TraceContext) -> Tensor:  # noqa: ARG002
        keys_values = trace_context.cross[0] if trace_context.cross else None
        output, trace_context.states_out = self.model.step(
            inputs["tokens"][:, 0], trace_context.states_in, keys_values, trace_context.source_lengths
        )
        states: Tensor = output[:, None]
        return states


class RecurrentTranslator(RecurrentModel, autoregressive.Translator):
    pass


class RecurrentCaptioner(RecurrentModel, autoregressive.Captioner):
    pass
