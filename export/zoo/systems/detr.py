from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from export.zoo.data.scenes import Scenes
from export.zoo.kit.placed import Objects, ObjectSizes
from export.zoo.model import Detector
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes


@system(
    "detr",
    group="vision",
    paper="Carion et al. 2020, End-to-End Object Detection with Transformers",
    recipe=Recipe(Scenes, bar=0.8, steps=2500, batch=32, rate=2e-3),
)
class Detr(Detector):
    Sizes: ClassVar[type[Sizes]] = ObjectSizes

    def __init__(self, sizes: ObjectSizes) -> None:
        super().__init__(sizes)
        self.objects = Objects(sizes)

    def guesses(self, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """One after each layer of the decoder."""
        return [self.objects.judged(seen) for seen in self.objects.looks(pixels)]

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self.guesses(pixels)[-1]
