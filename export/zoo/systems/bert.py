from __future__ import annotations

import torch
from torch import Tensor, nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.attention import SelfAttention
from export.zoo.kit.blocks import PostNorm
from export.zoo.kit.positions import Learned
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes


@system(
    "bert",
    group="the transformer",
    paper="Devlin et al. 2018, BERT: Pre-training of Deep Bidirectional Transformers",
    recipe=Recipe(ListOps, bar=0.9, steps=3000, rate=2e-3),
)
class Bert(SequenceClassifier):
    """A learned token stands before the text and is what the answer is read from."""

    block = PostNorm

    def __init__(self, sizes: SequenceSizes) -> None:
        super().__init__(sizes)
        self.first = nn.Parameter(torch.randn(1, 1, sizes.size) * 0.02)
        self.pooler = nn.Linear(sizes.size, sizes.size)

    def make_positions(self, sizes: SequenceSizes) -> nn.Module:
        return Learned(sizes.length, sizes.size)

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return SelfAttention(sizes.size, sizes.heads)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states = torch.cat([self.first.expand(tokens.shape[0], -1, -1), self.embedded(tokens)], 1)
        states = self.stack(self.norm(states), lengths + 1)
        answer: Tensor = self.head(self.pooler(states[:, 0]).tanh())
        return answer
