from __future__ import annotations

from torch import Tensor, nn

from export.zoo.data.taught import TaughtDigits
from export.zoo.kit.patches import LedPatchClassifier
from export.zoo.model import Pupil
from export.zoo.recipe import Recipe
from export.zoo.registry import system
from export.zoo.sizes import ImageSizes


@system(
    "deit",
    group="vision",
    paper="Touvron et al. 2020, Training data-efficient image transformers & distillation through attention",
    recipe=Recipe(TaughtDigits, bar=0.95, steps=1500, tier=2),
)
class DeiT(LedPatchClassifier, Pupil):
    """Beside the token that learns the answers stands one that learns what a convolutional teacher says."""

    leaders = 2

    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__(sizes)
        self.pupil = nn.Linear(sizes.size, sizes.classes)

    def answers(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Of the first token and of the teacher's."""
        states = self.mixed(pixels)
        return self.head(states[:, 0]), self.pupil(states[:, 1])

    def forward(self, pixels: Tensor) -> Tensor:
        own, taught = self.answers(pixels)
        return (own + taught) / 2
