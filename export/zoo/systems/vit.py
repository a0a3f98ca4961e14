from __future__ import annotations

from export.zoo.data.digits import Digits
from export.zoo.kit.patches import LedPatchClassifier
from export.zoo.recipe import Recipe
from export.zoo.registry import system


@system(
    "vit",
    group="vision",
    paper="Dosovitskiy et al. 2020, An Image is Worth 16x16 Words",
    recipe=Recipe(Digits, bar=0.95, steps=1500),
)
class ViT(LedPatchClassifier):
    """Patches are words; a learned token before them is what the answer is read from."""
