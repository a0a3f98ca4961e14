from __future__ import annotations

from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator
from torch import nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.mixers.linformer import LinformerMixer
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes, Sizes


class LinformerSizes(SequenceSizes):
    kept: PositiveInt = 16  # projected length of keys and values

    @model_validator(mode="after")
    def _check_kept(self) -> Self:
        if self.kept > self.length:
            raise ValueError(f"kept is {self.kept}; the maximum is length ({self.length})")
        return self


@architecture(
    "linformer",
    group="efficient attention",
    paper="Wang et al. 2020, Linformer: Self-Attention with Linear Complexity",
    recipe=Recipe(ListOps, target=0.8, steps=3000),
)
class Linformer(SequenceClassifier):
    Sizes: ClassVar[type[Sizes]] = LinformerSizes

    def make_mixer(self, sizes: LinformerSizes) -> nn.Module:
        return LinformerMixer(sizes.size, sizes.heads, sizes.length, sizes.kept)
