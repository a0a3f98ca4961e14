from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.mixers.longformer import LongformerMixer
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes, Sizes


class LongformerSizes(SequenceSizes):
    window: PositiveInt = 8  # tokens seen on either side


@system(
    "longformer",
    group="cheaper attention",
    paper="Beltagy et al. 2020, Longformer: The Long-Document Transformer",
    recipe=Recipe(ListOps, bar=0.7, steps=1500, tier=2),
)
class Longformer(SequenceClassifier):
    """The first token, which sees and is seen by all, is the operation of the outermost list."""

    Sizes: ClassVar[type[Sizes]] = LongformerSizes

    def make_mixer(self, sizes: LongformerSizes) -> nn.Module:
        return LongformerMixer(sizes.size, sizes.heads, sizes.window)
