from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from headwaiter_export.zoo.data.scenes import SceneCaptions
from headwaiter_export.zoo.layers.captioners import TransformerCaptioner
from headwaiter_export.zoo.layers.image_embedding import STRIDE, ConvolutionalStem
from headwaiter_export.zoo.layers.positions import GridPositions
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import AutoregressiveSizes, Sizes


class CnnTransformerSizes(AutoregressiveSizes):
    image: int = Field(default=64, gt=0, multiple_of=STRIDE)


@architecture(
    "cnn-transformer",
    group="captioning",
    paper="Sharma et al. 2018, Conceptual Captions: A Cleaned, Hypernymed, Image Alt-text Dataset",
    recipe=Recipe(SceneCaptions, target=0.5, steps=2500, batch_size=32, learning_rate=2e-3, tier=2),
)
class CnnTransformer(TransformerCaptioner):
    """Convolutional features with grid positions, read directly by a transformer decoder."""

    Sizes: ClassVar[type[Sizes]] = CnnTransformerSizes

    def make_encoder(self, sizes: Any) -> nn.Module:
        return nn.Sequential(ConvolutionalStem(sizes.size), GridPositions(sizes.image // STRIDE, sizes.size))
