"""Classifiers of token sequences: embedded, mixed by a stack, averaged, judged. Systems choose the mixer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from export.zoo.kit.blocks import PreNorm, Stack
from export.zoo.kit.masks import blanked, mean
from export.zoo.kit.positions import Sinusoidal
from export.zoo.model import TextClassifier
from export.zoo.sizes import SequenceSizes


class SequenceClassifier(TextClassifier):
    """`fixed_length` where the mixer's weights belong to places: every text is then padded to the longest."""

    fixed_length: ClassVar[bool] = False
    block: ClassVar[type[PreNorm]] = PreNorm

    def __init__(self, sizes: SequenceSizes) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(sizes.vocabulary, sizes.size)
        self.positions = self.make_positions(sizes)
        self.stack = self.make_stack(sizes)
        self.norm = nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.classes)

    def make_mixer(self, sizes: Any) -> nn.Module:
        """One layer's; called with states [rows, length, size] and lengths [rows]."""
        raise NotImplementedError

    def make_stack(self, sizes: Any) -> nn.Module:
        return Stack(self.block(self.make_mixer(sizes), sizes.size, sizes.hidden) for _ in range(sizes.layers))

    def make_positions(self, sizes: SequenceSizes) -> nn.Module | None:
        """What is added to words to say where they stand; nothing where the mixer knows."""
        return Sinusoidal(sizes.length, sizes.size)

    def embedded(self, tokens: Tensor) -> Tensor:
        words: Tensor = self.words(tokens)
        return words if self.positions is None else words + self.positions(torch.arange(tokens.shape[1]))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if self.fixed_length:
            tokens = pad(tokens, (0, self.sizes.length - tokens.shape[1]))
        states = self.stack(blanked(self.embedded(tokens), lengths), lengths)
        answer: Tensor = self.head(mean(self.norm(states), lengths))
        return answer
