from __future__ import annotations

from typing import Any, ClassVar

from torch import nn

from headwaiter_export.zoo.data.digits import Digits
from headwaiter_export.zoo.layers.image_embedding import make_image_embedding
from headwaiter_export.zoo.layers.patch_classifiers import ClassTokenClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import ImageEmbeddingSizes, ImageSizes, Sizes


class VitSizes(ImageEmbeddingSizes, ImageSizes):
    pass


@architecture(
    "vit",
    group="vision",
    paper="Dosovitskiy et al. 2020, An Image is Worth 16x16 Words",
    recipe=Recipe(Digits, target=0.95, steps=1500),
)
class ViT(ClassTokenClassifier):
    """Classifies from a learned token that is prepended to the patches."""

    Sizes: ClassVar[type[Sizes]] = VitSizes

    def make_patches(self, sizes: Any) -> nn.Module:
        return make_image_embedding(sizes, sizes.size)
