from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from export.zoo.data.digits import Digits
from export.zoo.kit.images import seen_by
from export.zoo.kit.patches import LedPatchClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import ImageSizes, Seen, Sizes


class VitSizes(Seen, ImageSizes):
    pass


@system(
    "vit",
    group="vision",
    paper="Dosovitskiy et al. 2020, An Image is Worth 16x16 Words",
    recipe=Recipe(Digits, bar=0.95, steps=1500),
)
class ViT(LedPatchClassifier):
    """Patches are words; a learned token before them is what the answer is read from."""

    Sizes: ClassVar[type[Sizes]] = VitSizes

    def make_patches(self, sizes: Any) -> nn.Module:
        return seen_by(sizes, sizes.size)
