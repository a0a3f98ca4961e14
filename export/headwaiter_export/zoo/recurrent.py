"""Recurrent model classes: each decoding step takes one token and replaces the recurrent states."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from headwaiter_export.zoo.layers.additive_attention import AdditiveAttention
from headwaiter_export.zoo.layers.attention import KeyValue
from headwaiter_export.zoo.layers.recurrent import RecurrentEncoder
from headwaiter_export.zoo.model import ZooModel
from headwaiter_export.zoo.sizes import Sizes

States = dict[str, Tensor]


class RecurrentSizes(Sizes):
    size: PositiveInt = 128
    vocabulary: PositiveInt = 32
    room: PositiveInt = 32  # tokens of the longest output, including the start token


class RecurrentTranslatorSizes(RecurrentSizes):
    source: PositiveInt = 32  # tokens of the longest source


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """Initial decoder states and, for models with attention, encoder states [rows, positions, size]."""

    states: States
    memory: Tensor | None = None


class RecurrentModel(ZooModel):
    head: nn.Module  # maps step outputs to logits

    def cross_attention(self) -> AdditiveAttention | None:
        """Attention over the encoder states, or None."""
        return None

    @abstractmethod
    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the per-row shape of each recurrent state."""

    @abstractmethod
    def step(
        self, tokens: Tensor, states: States, keys_values: KeyValue | None, lengths: Tensor | None
    ) -> tuple[Tensor, States]:
        """Advance by one token per row. `tokens` is [rows]; `keys_values` are the projected encoder states, of which
        the first `lengths` [rows] positions are valid. Returns an output [rows, size] for the head and the new states.
        """

    def logits(self, outputs: Tensor) -> Tensor:
        logits: Tensor = self.head(outputs)
        return logits

    def forward(self, tokens: Tensor, encoder_output: EncoderOutput, lengths: Tensor | None = None) -> Tensor:
        """Return logits [rows, steps, vocabulary] of whole sequences."""
        states, outputs = encoder_output.states, []
        cross_attention = self.cross_attention()
        keys_values = (
            cross_attention.project_keys_values(encoder_output.memory)
            if cross_attention is not None and encoder_output.memory is not None
            else None
        )
        for step_tokens in tokens.unbind(1):
            output, states = self.step(step_tokens, states, keys_values, lengths)
            outputs.append(output)
        return self.logits(torch.stack(outputs, 1))


class RecurrentTranslator(RecurrentModel):
    """The source is read by recurrent layers; `cells` builds them from input width and hidden size."""

    task = "translation"
    Sizes = RecurrentTranslatorSizes

    def __init__(self, sizes: Any, cells: Callable[..., nn.GRU | nn.LSTM]) -> None:
        super().__init__(sizes)
        self.read, self.written = (nn.Embedding(sizes.vocabulary, sizes.size) for _ in range(2))
        self.reader = RecurrentEncoder(cells(sizes.size, sizes.size, batch_first=True))

    @abstractmethod
    def encode(self, tokens: Tensor, lengths: Tensor) -> EncoderOutput: ...


class RecurrentCaptioner(RecurrentModel):
    task = "captioning"

    @abstractmethod
    def encode(self, pixels: Tensor) -> EncoderOutput: ...
