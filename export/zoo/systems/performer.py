from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.mixers.performer import PerformerMixer
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes, Sizes


class PerformerSizes(SequenceSizes):
    features: PositiveInt = 32  # random ones, of each query and key


@system(
    "performer",
    group="cheaper attention",
    paper="Choromanski et al. 2020, Rethinking Attention with Performers",
    recipe=Recipe(ListOps, bar=0.8, steps=1500),
)
class Performer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = PerformerSizes

    def make_mixer(self, sizes: PerformerSizes) -> nn.Module:
        return PerformerMixer(sizes.size, sizes.heads, sizes.features)
