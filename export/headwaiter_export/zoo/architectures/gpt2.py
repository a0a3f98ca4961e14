from __future__ import annotations

from typing import ClassVar

from headwaiter_export.zoo.data.copying import Copying
from headwaiter_export.zoo.layers.decoders import TransformerDecoder, TransformerDecoderModel
from headwaiter_export.zoo.layers.positions import LearnedPositions
from headwaiter_export.zoo.model import Generator
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import AutoregressiveSizes, Sizes


@architecture(
    "gpt2",
    group="the transformer",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    recipe=Recipe(Copying, target=0.98, steps=6000),
)
class Gpt2(TransformerDecoderModel, Generator):
    Sizes: ClassVar[type[Sizes]] = AutoregressiveSizes

    def __init__(self, sizes: AutoregressiveSizes) -> None:
        super().__init__(sizes)
        self.decoder = TransformerDecoder(sizes, LearnedPositions(sizes.room, sizes.size), with_cross_attention=False)
