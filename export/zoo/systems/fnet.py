from __future__ import annotations

from torch import nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.mixers.fourier import FourierMixer
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes


@system(
    "fnet",
    group="other mixing, depth, positions",
    paper="Lee-Thorp et al. 2021, FNet: Mixing Tokens with Fourier Transforms",
    recipe=Recipe(ListOps, bar=0.7, steps=5500, rate=2e-3, sizes={"layers": 4}),
)
class FNet(SequenceClassifier):
    fixed_length = True

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return FourierMixer(sizes.length, sizes.size)
