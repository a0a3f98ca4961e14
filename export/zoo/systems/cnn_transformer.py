from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from export.zoo.data.scenes import SceneCaptions
from export.zoo.kit.captioners import TransformerCaptioner
from export.zoo.kit.images import STRIDE, Stem
from export.zoo.kit.positions import OnGrid
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import Sizes, WriterSizes


class CnnSizes(WriterSizes):
    image: int = Field(default=64, gt=0, multiple_of=STRIDE)


@system(
    "cnn-transformer",
    group="captioning",
    paper="Sharma et al. 2018, Conceptual Captions: A Cleaned, Hypernymed, Image Alt-text Dataset",
    recipe=Recipe(SceneCaptions, bar=0.5, steps=2500, batch=32, rate=2e-3, tier=2),
)
class CnnTransformer(TransformerCaptioner):
    """Convolutions see, the decoder writes; nothing between them."""

    Sizes: ClassVar[type[Sizes]] = CnnSizes

    def make_encoder(self, sizes: Any) -> nn.Module:
        return nn.Sequential(Stem(sizes.size), OnGrid(sizes.image // STRIDE, sizes.size))
