from __future__ import annotations

from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator
from torch import nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.blocks import ReversibleBlock, ReversibleStack
from headwaiter_export.zoo.layers.mixers.reformer import ReformerMixer
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes, Sizes


class ReformerSizes(SequenceSizes):
    buckets: PositiveInt = 8  # per round
    chunk: PositiveInt = 12
    rounds: PositiveInt = 2  # hashing rounds

    @model_validator(mode="after")
    def _check_buckets(self) -> Self:
        if self.buckets % 2:
            raise ValueError(
                f"buckets is {self.buckets}; it must be even, because buckets are pairs of opposite directions"
            )
        return self


@architecture(
    "reformer",
    group="efficient attention",
    paper="Kitaev et al. 2020, Reformer: The Efficient Transformer",
    recipe=Recipe(ListOps, target=0.7, steps=2400, learning_rate=2e-3, tier=2),
)
class Reformer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = ReformerSizes

    def make_mixer(self, sizes: ReformerSizes) -> nn.Module:
        return ReformerMixer(sizes.size, sizes.heads, sizes.buckets, sizes.chunk, sizes.rounds)

    def make_stack(self, sizes: ReformerSizes) -> nn.Module:
        return ReversibleStack(
            ReversibleBlock(self.make_mixer(sizes), sizes.size, sizes.hidden) for _ in range(sizes.layers)
        )
