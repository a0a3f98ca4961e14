from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.mixers.performer import PerformerMixer
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes, Sizes


class PerformerSizes(SequenceSizes):
    features: PositiveInt = 32  # random features per query and key


@architecture(
    "performer",
    group="efficient attention",
    paper="Choromanski et al. 2020, Rethinking Attention with Performers",
    recipe=Recipe(ListOps, target=0.8, steps=1500),
)
class Performer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = PerformerSizes

    def make_mixer(self, sizes: PerformerSizes) -> nn.Module:
        return PerformerMixer(sizes.size, sizes.heads, sizes.features)
