from __future__ import annotations

from torch import nn

from export.zoo.data.listops import ListOps
from export.zoo.kit.mixers.synthesizer import DenseSynthesizer, RandomSynthesizer
from export.zoo.kit.sequences import SequenceClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import SequenceSizes

_PAPER = "Tay et al. 2020, Synthesizer: Rethinking Self-Attention for Transformer Models"


@system(
    "synthesizer-dense",
    group="cheaper attention",
    paper=_PAPER,
    recipe=Recipe(ListOps, bar=0.7, steps=1500, tier=2),
)
class SynthesizerDense(SequenceClassifier):
    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return DenseSynthesizer(sizes.size, sizes.heads, sizes.length)


@system(
    "synthesizer-random",
    group="cheaper attention",
    paper=_PAPER,
    recipe=Recipe(ListOps, bar=0.6, steps=3500, tier=2),
)
class SynthesizerRandom(SequenceClassifier):
    unfusable = "the scores are learned weights of pairs of places, not products of queries and keys"

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return RandomSynthesizer(sizes.size, sizes.heads, sizes.length)
