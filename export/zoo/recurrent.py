"""Kinds of systems that write from states: each step takes one word and leaves its states to the next."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.kit.additive import AdditiveAttention
from export.zoo.kit.attention import Pair
from export.zoo.kit.recurrent import Reader
from export.zoo.model import ZooModel
from export.zoo.sizes import Sizes

States = dict[str, Tensor]


class RecurrentSizes(Sizes):
    size: PositiveInt = 128
    vocabulary: PositiveInt = 32
    room: PositiveInt = 32  # tokens of the longest answer, its start included


class RecurrentTranslatorSizes(RecurrentSizes):
    source: PositiveInt = 32  # tokens of the longest source


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source became: the states that writing begins with, and places [rows, places, size] to look at."""

    states: States
    places: Tensor | None = None


class RecurrentWriter(ZooModel):
    head: nn.Module  # from answers to words

    def crossing(self) -> AdditiveAttention | None:
        """The attention to the places of the source."""
        return None

    @abstractmethod
    def held(self) -> dict[str, tuple[int, ...]]:
        """The states by name, and the shape of a row's."""

    @abstractmethod
    def step(self, words: Tensor, states: States, seen: Pair | None, lengths: Tensor | None) -> tuple[Tensor, States]:
        """What words [rows] make of the states: an answer [rows, size] for the head, and the states after it. `seen` is
        what attention made of the source, of which `lengths` [rows] places are real."""

    def logits(self, answers: Tensor) -> Tensor:
        logits: Tensor = self.head(answers)
        return logits

    def forward(self, tokens: Tensor, reading: Reading, lengths: Tensor | None = None) -> Tensor:
        """Logits [rows, steps, vocabulary] of whole texts."""
        states, answers = reading.states, []
        crossing = self.crossing()
        seen = crossing.memories(reading.places) if crossing is not None and reading.places is not None else None
        for words in tokens.unbind(1):
            answer, states = self.step(words, states, seen, lengths)
            answers.append(answer)
        return self.logits(torch.stack(answers, 1))


class RecurrentTranslator(RecurrentWriter):
    """Words are read by recurrent layers; `cells` makes them from the width and the size."""

    task = "translation"
    Sizes = RecurrentTranslatorSizes

    def __init__(self, sizes: Any, cells: Callable[..., nn.GRU | nn.LSTM]) -> None:
        super().__init__(sizes)
        self.read, self.written = (nn.Embedding(sizes.vocabulary, sizes.size) for _ in range(2))
        self.reader = Reader(cells(sizes.size, sizes.size, batch_first=True))

    @abstractmethod
    def encode(self, tokens: Tensor, lengths: Tensor) -> Reading: ...


class RecurrentCaptioner(RecurrentWriter):
    task = "captioning"

    @abstractmethod
    def encode(self, pixels: Tensor) -> Reading: ...
