from __future__ import annotations

from headwaiter_export.families.family import family
from headwaiter_export.families.single_pass import ImageClassifier


@family("vit")
class ViT(ImageClassifier):
    transformers_class = "ViTForImageClassification"


@family("deit")
class DeiT(ImageClassifier):
    transformers_class = "DeiTForImageClassification"


@family("swin")
class Swin(ImageClassifier):
    transformers_class = "SwinForImageClassification"
