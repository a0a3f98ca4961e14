"""Recipes of the house: what they make is what the repository has."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

from export.errors import SourceError
from export.menu import WEIGHTS, menu
from export.menu.house import lesson, taught
from export.zoo.checkpoint import WEIGHTS as FILE
from export.zoo.sizes import Seen

MADE_HERE = [name for name, dish in menu().items() if dish.parcel is None]


@pytest.mark.parametrize("name", MADE_HERE)
def test_the_recipe_makes_what_is_there(name: str) -> None:
    system, folder = taught(name), WEIGHTS / name
    sizes = system.sizes(system.recipe.data(**system.recipe.options))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["system"] == system.name
    assert system.model.Sizes.read(config["sizes"], name) == sizes
    assert system.task == menu()[name].task
    model = system.model(sizes)
    if (begin := lesson(name).begin) is not None:
        begin(model)
    kept = load_file(folder / FILE)
    assert {key: value.shape for key, value in model.state_dict().items()} == {
        key: value.shape for key, value in kept.items()
    }


def test_convolutions_that_do_not_lead_to_a_patch_are_refused() -> None:
    with pytest.raises(SourceError, match="patch is 6, which halving an image does not lead to"):
        Seen.read({"patch": 6, "convolutions": True}, "vit")
