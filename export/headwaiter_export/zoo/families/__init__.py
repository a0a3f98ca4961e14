"""Maps the model classes of the zoo to export families."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headwaiter_export.families.family import Family
from headwaiter_export.zoo import model as models
from headwaiter_export.zoo import recurrent as recurrent_models
from headwaiter_export.zoo.checkpoint import read_checkpoint
from headwaiter_export.zoo.families import autoregressive, image_generation, policy, recurrent, single_pass
from headwaiter_export.zoo.families.base import ZooFamily
from headwaiter_export.zoo.model import ZooModel

FAMILIES: dict[type[ZooModel], type[ZooFamily]] = {
    models.TextClassifier: single_pass.TextClassifier,
    models.ImageClassifier: single_pass.ImageClassifier,
    models.Detector: single_pass.Detector,
    models.ImageGenerator: image_generation.ImageGenerator,
    models.Generator: autoregressive.Generator,
    models.Translator: autoregressive.Translator,
    models.Captioner: autoregressive.Captioner,
    recurrent_models.RecurrentTranslator: recurrent.RecurrentTranslator,
    recurrent_models.RecurrentCaptioner: recurrent.RecurrentCaptioner,
    models.Actor: policy.Actor,
}


def zoo_family(folder: Path, config: dict[str, Any]) -> Family:
    """Load the checkpoint in `folder` and return its family; raise `SourceError` if it is invalid."""
    checkpoint = read_checkpoint(folder, config)
    family = next(family for base, family in FAMILIES.items() if isinstance(checkpoint.model, base))
    return family(checkpoint, folder)
