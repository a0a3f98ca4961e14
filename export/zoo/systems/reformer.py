from __future__ import annotations

from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator
from torch import nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.blocks import Reversible, TwoStreams
from export.zoo.kit.mixers.reformer import ReformerMixer
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes, Sizes


class ReformerSizes(SequenceSizes):
    buckets: PositiveInt = 8  # of each round
    chunk: PositiveInt = 12
    rounds: PositiveInt = 2  # of hashing

    @model_validator(mode="after")
    def _buckets_are_pairs(self) -> Self:
        if self.buckets % 2:
            raise ValueError(f"buckets is {self.buckets}: they are pairs of opposite directions, so it must be even")
        return self


@system(
    "reformer",
    group="cheaper attention",
    paper="Kitaev et al. 2020, Reformer: The Efficient Transformer",
    recipe=Recipe(ListOps, bar=0.7, steps=2400, rate=2e-3, tier=2),
)
class Reformer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = ReformerSizes

    def make_mixer(self, sizes: ReformerSizes) -> nn.Module:
        return ReformerMixer(sizes.size, sizes.heads, sizes.buckets, sizes.chunk, sizes.rounds)

    def make_stack(self, sizes: ReformerSizes) -> nn.Module:
        return TwoStreams(Reversible(self.make_mixer(sizes), sizes.size, sizes.hidden) for _ in range(sizes.layers))
