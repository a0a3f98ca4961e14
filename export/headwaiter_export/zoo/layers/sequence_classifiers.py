"""Classifiers of token sequences: embedding, a stack of mixers, mean pooling and a linear head. Subclasses choose the
mixer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from headwaiter_export.zoo.layers.blocks import PreNormBlock, Stack
from headwaiter_export.zoo.layers.masks import mean, zero_padding
from headwaiter_export.zoo.layers.positions import SinusoidalPositions
from headwaiter_export.zoo.model import TextClassifier
from headwaiter_export.zoo.sizes import SequenceSizes


class SequenceClassifier(TextClassifier):
    """`fixed_length` is set if the mixer's weights belong to positions; every text is then padded to the maximum
    length."""

    fixed_length: ClassVar[bool] = False
    block: ClassVar[type[PreNormBlock]] = PreNormBlock

    def __init__(self, sizes: SequenceSizes) -> None:
        super().__init__(sizes)
        self.words = nn.Embedding(sizes.vocabulary, sizes.size)
        self.positions = self.make_positions(sizes)
        self.stack = self.make_stack(sizes)
        self.norm = nn.LayerNorm(sizes.size)
        self.head = nn.Linear(sizes.size, sizes.classes)

    def make_mixer(self, sizes: Any) -> nn.Module:
        """Return the mixer of one layer; it takes states [rows, length, size] and lengths [rows]."""
        raise NotImplementedError

    def make_stack(self, sizes: Any) -> nn.Module:
        return Stack(self.block(self.make_mixer(sizes), sizes.size, sizes.hidden) for _ in range(sizes.layers))

    def make_positions(self, sizes: SequenceSizes) -> nn.Module | None:
        """Return the module whose output is added to the token embeddings, or None if the mixer encodes positions."""
        return SinusoidalPositions(sizes.length, sizes.size)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        embeddings: Tensor = self.words(tokens)
        return embeddings if self.positions is None else embeddings + self.positions(torch.arange(tokens.shape[1]))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        if self.fixed_length:
            tokens = pad(tokens, (0, self.sizes.length - tokens.shape[1]))
        states = self.stack(zero_padding(self.embed_tokens(tokens), lengths), lengths)
        scores: Tensor = self.head(mean(self.norm(states), lengths))
        return scores
