from __future__ import annotations

from typing import ClassVar

from export.zoo.data.copying import Copying
from export.zoo.kit.decoders import ByDecoder, WordDecoder
from export.zoo.kit.positions import Learned
from export.zoo.model import Generator
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes, WriterSizes


@system(
    "gpt2",
    group="the transformer",
    paper="Radford et al. 2019, Language Models are Unsupervised Multitask Learners",
    recipe=Recipe(Copying, bar=0.98, steps=6000),
)
class Gpt2(ByDecoder, Generator):
    Sizes: ClassVar[type[Sizes]] = WriterSizes

    def __init__(self, sizes: WriterSizes) -> None:
        super().__init__(sizes)
        self.decoder = WordDecoder(sizes, Learned(sizes.room, sizes.size), crosses=False)
