from __future__ import annotations

from torch import nn

from headwaiter_export.zoo.data.listops import ListOps
from headwaiter_export.zoo.layers.mixers.synthesizer import DenseSynthesizer, RandomSynthesizer
from headwaiter_export.zoo.layers.sequence_classifiers import SequenceClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import SequenceSizes

_PAPER = "Tay et al. 2020, Synthesizer: Rethinking Self-Attention for Transformer Models"


@architecture(
    "synthesizer-dense",
    group="efficient attention",
    paper=_PAPER,
    recipe=Recipe(ListOps, target=0.7, steps=1500, tier=2),
)
class SynthesizerDense(SequenceClassifier):
    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return DenseSynthesizer(sizes.size, sizes.heads, sizes.length)


@architecture(
    "synthesizer-random",
    group="efficient attention",
    paper=_PAPER,
    recipe=Recipe(ListOps, target=0.6, steps=3500, tier=2),
)
class SynthesizerRandom(SequenceClassifier):
    no_fused_operator_reason = (
        "the scores are learned weights of pairs of positions, not dot products of queries and keys"
    )

    def make_mixer(self, sizes: SequenceSizes) -> nn.Module:
        return RandomSynthesizer(sizes.size, sizes.heads, sizes.length)
