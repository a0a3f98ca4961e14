"""What each method does: requests to the model's task, answers back as messages."""

from __future__ import annotations

from typing import Any

from service.ingress.desk import Desk
from service.ingress.endpoint import Verbs
from service.ingress.verbs.captioning import captioning
from service.ingress.verbs.classification import classification
from service.ingress.verbs.describe import describing
from service.ingress.verbs.detection import detection
from service.ingress.verbs.generation import generation
from service.ingress.verbs.policy import policy
from service.ingress.verbs.translation import translation

_TASKS = {
    "translation": translation,
    "captioning": captioning,
    "classification": classification,
    "detection": detection,
    "policy": policy,
    "generation": generation,
}


def open_verbs(desk: Desk, model: Any) -> Verbs:
    """The methods that a model has: those of its task, and the one that tells about it."""
    return {**_TASKS[model.manifest.task](desk, model), **describing(desk, model)}
