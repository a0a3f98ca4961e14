"""The zoo's kinds of models as families: what the pipeline needs to know of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from export.family import Family
from export.zoo import model as kinds
from export.zoo import recurrent as recurrent_kinds
from export.zoo.checkpoint import read_checkpoint
from export.zoo.families import images, onepass, policy, recurrent, words
from export.zoo.families.base import OfZoo
from export.zoo.model import ZooModel

FAMILIES: dict[type[ZooModel], type[OfZoo]] = {
    kinds.TextClassifier: onepass.TextClassifier,
    kinds.ImageClassifier: onepass.ImageClassifier,
    kinds.Detector: onepass.Detector,
    kinds.Painter: images.Painter,
    kinds.Generator: words.Generator,
    kinds.Translator: words.Translator,
    kinds.Captioner: words.Captioner,
    recurrent_kinds.RecurrentTranslator: recurrent.RecurrentTranslator,
    recurrent_kinds.RecurrentCaptioner: recurrent.RecurrentCaptioner,
    kinds.Actor: policy.Actor,
}


def zoo_family(folder: Path, config: dict[str, Any]) -> Family:
    checkpoint = read_checkpoint(folder, config)
    return next(kind for base, kind in FAMILIES.items() if isinstance(checkpoint.model, base))(checkpoint, folder)
