from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.mixers.longformer import LongformerMixer
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes, Sizes


class LongformerSizes(SequenceSizes):
    window: PositiveInt = 8  # tokens on either side


@architecture(
    "longformer",
    group="efficient attention",
    paper="Beltagy et al. 2020, Longformer: The Long-Document Transformer",
    recipe=Recipe(ListOps, target=0.7, steps=1500, tier=2),
)
class Longformer(SequenceClassifier):
    """The first token, which has global attention, is the operator of the outermost list."""

    Sizes: ClassVar[type[Sizes]] = LongformerSizes

    def make_mixer(self, sizes: LongformerSizes) -> nn.Module:
        return LongformerMixer(sizes.size, sizes.heads, sizes.window)
