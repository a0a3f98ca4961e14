from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveInt
from torch import Tensor, nn

from export.zoo.data.scenes import Scenes
from export.zoo.kit.placed import Objects, ObjectSizes, spread
from export.zoo.model import Detector
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes


class DetrSizes(ObjectSizes):
    classes: PositiveInt = 4


@system(
    "detr",
    group="vision",
    paper="Carion et al. 2020, End-to-End Object Detection with Transformers",
    recipe=Recipe(Scenes, bar=0.8, steps=2500, batch=32, rate=2e-3),
)
class Detr(Detector):
    """Boxes are changes of anchors, where the queries begin."""

    Sizes: ClassVar[type[Sizes]] = DetrSizes

    def __init__(self, sizes: DetrSizes) -> None:
        super().__init__(sizes)
        self.objects = Objects(sizes)
        self.classes = nn.Linear(sizes.size, sizes.classes + 1)
        self.boxes = nn.Sequential(nn.Linear(sizes.size, sizes.size), nn.ReLU(), nn.Linear(sizes.size, 4))
        self.anchors = nn.Parameter(spread(sizes.queries).logit())

    def guesses(self, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """One after each layer of the decoder."""
        looks = self.objects.looks(pixels)
        return [(self.classes(seen), (self.boxes(seen) + self.anchors).sigmoid()) for seen in looks]

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self.guesses(pixels)[-1]
