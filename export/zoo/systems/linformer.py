from __future__ import annotations

from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator
from torch import nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.mixers.linformer import LinformerMixer
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes, Sizes


class LinformerSizes(SequenceSizes):
    kept: PositiveInt = 16  # keys that the length is summed up into

    @model_validator(mode="after")
    def _fewer_are_kept(self) -> Self:
        if self.kept > self.length:
            raise ValueError(f"kept is {self.kept}, more than the length {self.length}")
        return self


@system(
    "linformer",
    group="cheaper attention",
    paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity",
    recipe=Recipe(ListOps, bar=0.8, steps=3000),
)
class Linformer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = LinformerSizes

    def make_mixer(self, sizes: LinformerSizes) -> nn.Module:
        return LinformerMixer(sizes.size, sizes.heads, sizes.length, sizes.kept)
