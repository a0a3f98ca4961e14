"""Training recipes of the built-in models: architectures of the zoo with their own datasets and settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from safetensors.torch import load_file
from torch import nn

from headwaiter_export.errors import SourceError
from headwaiter_export.menu import WEIGHTS
from headwaiter_export.menu.data.breakout import BreakoutDemonstrations
from headwaiter_export.menu.data.definitions import Definitions
from headwaiter_export.menu.data.emoji import EmojiCaptions, EmojiScenes
from headwaiter_export.zoo.checkpoint import WEIGHTS as WEIGHTS_FILE
from headwaiter_export.zoo.data.fashion import Fashion
from headwaiter_export.zoo.recipe import Recipe
from headwaiter_export.zoo.registry import Architecture, find_architecture


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """An architecture of the zoo and how it is trained. `initialize` modifies the randomly initialized model."""

    architecture: str
    recipe: Recipe
    initialize: Callable[[nn.Module], None] | None = None


def _load_detr_weights(captioner: nn.Module) -> None:
    """Load the detector of emoji-detr and freeze it, so that its features can be computed once per scene."""
    tensors, detr = load_file(WEIGHTS / "emoji-detr" / WEIGHTS_FILE), captioner.get_submodule("encoder.0")
    detr.load_state_dict({name: tensors[f"objects.{name}"] for name in detr.state_dict()})
    detr.requires_grad_(False)


def _initialize_embeddings(bert: nn.Module) -> None:
    """Initialize token embeddings small, as BERT does: unit-variance vectors slow down learning of rare words."""
    nn.init.normal_(bert.get_submodule("words").weight, std=0.02)  # type: ignore[arg-type]


_TRAINING_RECIPES = {
    "fashion-vit": TrainingRecipe(
        "vit",
        Recipe(
            Fashion,
            target=0.92,
            steps=10_000,
            batch_size=128,
            learning_rate=1.5e-3,
            sizes={"size": 96, "hidden": 192, "layers": 3, "convolutions": True},
        ),
    ),
    "topics-bert": TrainingRecipe(
        "bert",
        Recipe(
            Definitions, target=0.9, steps=1000, batch_size=128, learning_rate=2e-3, sizes={"size": 128, "hidden": 256}
        ),
        _initialize_embeddings,
    ),
    "emoji-detr": TrainingRecipe(
        "detr",
        Recipe(
            EmojiScenes,
            target=0.97,
            steps=4500,
            batch_size=32,
            learning_rate=1.5e-3,
            sizes={"size": 96, "hidden": 192, "queries": 16, "decoder_layers": 3},
        ),
    ),
    "emoji-captioner": TrainingRecipe(
        "vit-captioner",
        Recipe(
            EmojiCaptions,
            target=0.85,
            steps=6000,
            batch_size=128,
            learning_rate=1.5e-3,
            options={"scenes": 60_000},
            sizes={"size": 96, "hidden": 192, "patch": 8, "queries": 16, "classes": 24, "decoder_layers": 3},
        ),
        _load_detr_weights,
    ),
    "breakout-dt": TrainingRecipe(
        "decision-transformer",
        Recipe(
            BreakoutDemonstrations,
            target=4.5,  # twice the mean return of the demonstrations
            steps=3000,
            batch_size=128,
            sizes={"size": 96, "hidden": 192, "unit": 10},
        ),
    ),
}


def training_recipe(name: str) -> TrainingRecipe:
    if name not in _TRAINING_RECIPES:
        raise SourceError(f"{name} has no training recipe; available: {', '.join(_TRAINING_RECIPES)}.")
    return _TRAINING_RECIPES[name]


def trainable_architecture(name: str) -> Architecture:
    """Return the architecture of a built-in model with the recipe of that model."""
    training = training_recipe(name)
    return replace(find_architecture(training.architecture), recipe=training.recipe)
