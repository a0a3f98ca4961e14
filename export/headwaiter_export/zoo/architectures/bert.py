from __future__ import annotations

import torch
from torch import Tensor, nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.attention import SelfAttention
from headwaiter_export.zoo.layers.blocks import PostNormBlock
from headwaiter_export.zoo.layers.positions import LearnedPositions
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes


@architecture(
    "bert",
    group="the transformer",
    paper="Devlin et al. 2018, BERT: Pre-training of Deep Bidirectional Transformers",
    recipe=Recipe(ListOps, target=0.9, steps=3000, learning_rate=2e-3),
)
class Bert(SequenceClassifier):
    """Classifies from a learned token that is prepended to the text."""

    block = PostNormBlock

    def __init__(self, sizes: SequenceSizes) -> None:
        super().__init__(sizes)
        self.first = nn.Parameter(torch.randn(1, 1, sizes.size) * 0.02)
        self.pooler = nn.Linear(sizes.size, sizes.size)

    def make_positions(self, sizes: SequenceSizes) -> nn.Module:
        return LearnedPositions(sizes.length, sizes.size)

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return SelfAttention(sizes.size, sizes.heads)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states = torch.cat([self.first.expand(tokens.shape[0], -1, -1), self.embed_tokens(tokens)], 1)
        states = self.stack(self.norm(states), lengths + 1)
        scores: Tensor = self.head(self.pooler(states[:, 0]).tanh())
        return scores
