from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from headwaiter_export.zoo.data.scenes import Scenes
from headwaiter_export.zoo.layers.object_queries import DetrSizes, DetrTransformer
from headwaiter_export.zoo.model import Detector
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import Sizes


@architecture(
    "detr",
    group="vision",
    paper="Carion et al. 2020, End-to-End Object Detection with Transformers",
    recipe=Recipe(Scenes, target=0.8, steps=2500, batch_size=32, learning_rate=2e-3),
)
class Detr(Detector):
    Sizes: ClassVar[type[Sizes]] = DetrSizes

    def __init__(self, sizes: DetrSizes) -> None:
        super().__init__(sizes)
        self.objects = DetrTransformer(sizes)

    def predictions(self, pixels: Tensor) -> list[tuple[Tensor, Tensor]]:
        """One prediction per decoder layer."""
        return [self.objects.predict(states) for states in self.objects.layer_outputs(pixels)]

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictions(pixels)[-1]
