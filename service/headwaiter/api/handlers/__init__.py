"""Method handlers: convert request messages to task calls and task results to response messages."""

from __future__ import annotations

from typing import Any

from headwaiter.api.endpoint import Handlers
from headwaiter.api.executor import RequestExecutor
from headwaiter.api.handlers.captioning import captioning
from headwaiter.api.handlers.classification import classification
from headwaiter.api.handlers.describe import model_description
from headwaiter.api.handlers.detection import detection
from headwaiter.api.handlers.generation import generation
from headwaiter.api.handlers.policy import policy
from headwaiter.api.handlers.translation import translation

_TASKS = {
    "translation": translation,
    "captioning": captioning,
    "classification": classification,
    "detection": detection,
    "policy": policy,
    "generation": generation,
}


def build_handlers(executor: RequestExecutor, model: Any) -> Handlers:
    """Handlers by method name: those of the model's task, and Describe."""
    return {**_TASKS[model.manifest.task](executor, model), **model_description(executor, model)}
