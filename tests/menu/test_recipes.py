"""Training recipes of the built-in models match the weights in the repository."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from headwaiter_export.errors import SourceError
from headwaiter_export.menu import WEIGHTS, menu
from headwaiter_export.menu.recipes import trainable_architecture, training_recipe
from headwaiter_export.zoo.checkpoint import WEIGHTS as WEIGHTS_FILE
from headwaiter_export.zoo.sizes import ImageEmbeddingSizes

TRAINED_HERE = [name for name, entry in menu().items() if entry.artifact is None]


@pytest.mark.parametrize("name", TRAINED_HERE)
def test_recipe_model_matches_shipped_weights(name: str) -> None:
    architecture, folder = trainable_architecture(name), WEIGHTS / name
    sizes = architecture.sizes(architecture.recipe.data(**architecture.recipe.options))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["system"] == architecture.name
    assert architecture.model.Sizes.read(config["sizes"], name) == sizes
    assert architecture.task == menu()[name].task
    model = architecture.model(sizes)
    if (initialize := training_recipe(name).initialize) is not None:
        initialize(model)
    shipped = load_file(folder / WEIGHTS_FILE)
    assert {key: value.shape for key, value in model.state_dict().items()} == {
        key: value.shape for key, value in shipped.items()
    }


def test_image_embedding_sizes_patch_not_power_of_two_rejected() -> None:
    with pytest.raises(SourceError, match=r"patch is 6; .* power of two"):
        ImageEmbeddingSizes.read({"patch": 6, "convolutions": True}, "vit")
