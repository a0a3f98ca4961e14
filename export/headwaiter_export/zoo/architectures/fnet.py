from __future__ import annotations

from torch import nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.mixers.fourier import FourierMixer
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes


@architecture(
    "fnet",
    group="other mixing, depth, positions",
    paper="Lee-Thorp et al. 2021, FNet: Mixing Tokens with Fourier Transforms",
    recipe=Recipe(ListOps, target=0.7, steps=5500, learning_rate=2e-3, sizes={"layers": 4}),
)
class FNet(SequenceClassifier):
    fixed_length = True

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return FourierMixer(sizes.length, sizes.size)
