from __future__ import annotations

from torch import Tensor, nn

from headwaiter_export.zoo.data.distilled_digits import DistilledDigits
from headwaiter_export.zoo.layers.patch_classifiers import ClassTokenClassifier
from headwaiter_export.zoo.model import DistilledImageClassifier
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import architecture
from headwaiter_export.zoo.sizes import ImageSizes


@architecture(
    "deit",
    group="vision",
    paper="Touvron et al. 2020, Training data-efficient image transformers & distillation through attention",
    recipe=Recipe(DistilledDigits, target=0.95, steps=1500, tier=2),
)
class DeiT(ClassTokenClassifier, DistilledImageClassifier):
    """Class token plus a distillation token that is trained on the predictions of a convolutional teacher."""

    class_tokens = 2

    def __init__(self, sizes: ImageSizes) -> None:
        super().__init__(sizes)
        self.pupil = nn.Linear(sizes.size, sizes.classes)

    def class_and_distillation_scores(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        states = self.encode_patches(pixels)
        return self.head(states[:, 0]), self.pupil(states[:, 1])

    def forward(self, pixels: Tensor) -> Tensor:
        class_scores, distillation_scores = self.class_and_distillation_scores(pixels)
        return (class_scores + distillation_scores) / 2
