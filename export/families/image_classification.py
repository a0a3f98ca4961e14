from __future__ import annotations

from export.family import family
from export.onepass import ImageClassifier


@family("vit")
class ViT(ImageClassifier):
    head = "ViTForImageClassification"


@family("deit")
class DeiT(ImageClassifier):
    head = "DeiTForImageClassification"


@family("swin")
class Swin(ImageClassifier):
    head = "SwinForImageClassification"
