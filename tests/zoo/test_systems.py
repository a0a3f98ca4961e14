"""Every system of the zoo: what it answers, what it must not see, that it exports, serves, and learns."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import pytest
import torch

from export import readme
from export.errors import SourceError
from export.pipeline import Order, export
from export.zoo.checkpoint import Checkpoint
from export.zoo.data.base import Data
from export.zoo.data.blind_cartpole import BlindCartPole
from export.zoo.data.cartpole import CartPole
from export.zoo.data.copying import Copying
from export.zoo.data.digits import Digits
from export.zoo.data.listops import ListOps
from export.zoo.data.reversing import Reversing
from export.zoo.data.scenes import SceneCaptions, Scenes
from export.zoo.data.taught import TaughtDigits
from export.zoo.listing import table
from export.zoo.model import Generator, ImageClassifier, Painter, TextClassifier, Writer, ZooModel
from export.zoo.outcome import measured
from export.zoo.recurrent import RecurrentWriter
from export.zoo.registry import systems
from export.zoo.training import train
from service import open_model
from service.package import Precision, open_package

SYSTEMS = systems()


class Brief(NamedTuple):
    """A few seconds of training: the data made easy, how often it is seen, and on how much of it is measured."""

    options: dict[str, Any]
    steps: int
    measured: int = 100


BRIEFS: dict[type[Data], Brief] = {
    Reversing: Brief({"length": 4}, steps=120),
    Copying: Brief({"length": 2}, steps=100),
    ListOps: Brief({"length": 8}, steps=200, measured=200),
    SceneCaptions: Brief({"image": 32, "shapes": 1}, steps=150),
    Scenes: Brief({"image": 32, "shapes": 1}, steps=150),
    Digits: Brief({}, steps=60),
    TaughtDigits: Brief({}, steps=60),
    CartPole: Brief({}, steps=60, measured=3),
    BlindCartPole: Brief(
        {"context": 8, "players": 16, "exploring": 200, "discount": 0.95, "following": 0.03}, steps=250, measured=5
    ),
}
NARROWER = {"linformer": {"kept": 4}}  # what is kept is less than there is
# Every export is compared with torch in fp32 first, whatever it becomes: one each is enough, and all would take long.
PRECISIONS: dict[str, Precision] = dict(zip(SYSTEMS, cycle(get_args(Precision)), strict=False))


@cache
def data_of(name: str) -> Data:
    recipe = SYSTEMS[name].recipe
    return recipe.data(**recipe.options)


def untrained(name: str) -> ZooModel:
    torch.manual_seed(5)
    system = SYSTEMS[name]
    model = system.model(system.sizes(data_of(name)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))  # what begins at zero would hide a mistake
    return model.eval()


@pytest.mark.parametrize(("name", "precision"), PRECISIONS.items())
def test_exports_and_serves(name: str, precision: Precision, tmp_path: Path) -> None:
    """The pipeline's own checks are part of the export; the engine must open what comes out and answer."""
    data, model = data_of(name), untrained(name)
    folder = tmp_path / "checkpoint"
    checkpoint = Checkpoint(model, data.preprocessing(folder), data.labels(), data.decoding())
    checkpoint.save(folder)
    package = export(Order(str(folder), name=name, precision=precision, out=tmp_path / "models"))
    manifest = package.manifest
    assert (manifest.task, manifest.family) == (SYSTEMS[name].task, name)
    assert manifest.fused.attention == manifest.fused.fused or model.unfusable == manifest.fused.because
    with open_model(open_package(package.folder).folder) as served:
        assert np.isfinite(data.measure(served, most=3))


@pytest.mark.parametrize("name", [name for name, each in SYSTEMS.items() if issubclass(each.model, TextClassifier)])
def test_padding_and_neighbours_do_not_matter(name: str) -> None:
    model = untrained(name)
    rng = np.random.default_rng(1)
    width = model.sizes.length
    lengths = torch.tensor([width, width // 2, 1], dtype=torch.int32)
    tokens = torch.from_numpy(rng.integers(1, model.sizes.vocabulary, (3, width)))
    with torch.no_grad():
        together = model(tokens, lengths)
        for row, length in enumerate(lengths.tolist()):
            padded = -(-length // 8) * 8
            alone = model(tokens[row : row + 1, : min(padded, width)], lengths[row : row + 1])
            torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=1e-4)
    assert together.shape == (3, model.sizes.classes)


@pytest.mark.parametrize("name", [name for name, each in SYSTEMS.items() if issubclass(each.model, ImageClassifier)])
def test_images_do_not_see_each_other(name: str) -> None:
    model = untrained(name)
    pixels = torch.randn(3, 3, model.sizes.image, model.sizes.image)
    with torch.no_grad():
        together = model(pixels)
        alone = torch.cat([model(each[None]) for each in pixels])
    assert together.shape == (3, model.sizes.classes)
    torch.testing.assert_close(alone, together, atol=1e-5, rtol=1e-4)


def encoded(model: Any) -> tuple[Any, ...]:
    """What a writer looks at beside its own words: nothing, two sources, or two images."""
    if isinstance(model, Generator):
        return ()
    if model.task == "captioning":
        return (model.encode(torch.randn(2, 3, model.sizes.image, model.sizes.image)),)
    lengths = torch.tensor([model.sizes.source, 3], dtype=torch.int32)
    return model.encode(torch.randint(1, model.sizes.vocabulary, (2, model.sizes.source)), lengths), lengths


@pytest.mark.parametrize(
    "name", [name for name, each in SYSTEMS.items() if issubclass(each.model, (Writer, RecurrentWriter))]
)
def test_what_comes_later_changes_nothing_before(name: str) -> None:
    """Of actors it is said in test_decisions.py."""
    model: Any = untrained(name)
    tokens = torch.randint(1, model.sizes.vocabulary, (2, model.sizes.room - 1))
    changed = tokens.clone()
    changed[:, 6:] = torch.randint(1, model.sizes.vocabulary, changed[:, 6:].shape)
    with torch.no_grad():
        source = encoded(model)
        before, after = model(tokens, *source), model(changed, *source)
    assert before.shape == (*tokens.shape, model.sizes.vocabulary)
    torch.testing.assert_close(before[:, :6], after[:, :6], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(before[:, 6:], after[:, 6:])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, each in SYSTEMS.items() if not issubclass(each.model, Painter)])
def test_learns(name: str, tmp_path: Path) -> None:
    """A few seconds with the easiest of its data, and what is served is twice as good as guessing. What painters learn
    is measured in test_painters.py."""
    system = SYSTEMS[name]
    brief = BRIEFS[system.recipe.data]
    sizes = {**system.recipe.sizes, **NARROWER.get(name, {})}
    easy = replace(system, recipe=replace(system.recipe, options=brief.options, sizes=sizes))
    data, progress = train(easy, tmp_path, steps=brief.steps)
    outcome = measured(easy, tmp_path, data, progress, most=brief.measured)
    assert outcome.value >= max(2 * data.chance, 0.1)


def test_precisions_are_compared_within_the_room(tmp_path: Path) -> None:
    """A model that writes a few words only."""
    system = SYSTEMS["transformer"]
    train(replace(system, recipe=replace(system.recipe, options={"length": 3})), tmp_path, steps=1)
    order = Order(str(tmp_path), name="brief", precision="int8", out=tmp_path / "models")
    assert export(order).manifest.limits["room"] < 12


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"system": "vti"}, "The zoo has no 'vti'; did you mean vit"),
        ({"system": "bert"}, "config.json has no size 'image'; it has size, heads"),
        ({"sizes": {"heads": 5}}, "size is 64, which heads 5 does not divide"),
        ({"sizes": {"wings": 2}}, "config.json has no size 'wings'; it has size, heads"),
        ({"sizes": {"layers": 0}}, "layers: Input should be greater than 0"),
        (
            {"sizes": {"hidden": 96}},
            "do not fit its config.json: stack.0.feed_forward.0.weight is [128, 64], not [96, 64]",
        ),
    ],
)
def test_a_bad_config_is_refused_in_a_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    train(SYSTEMS["vit"], tmp_path, steps=1)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {**change, "sizes": {**config["sizes"], **change.get("sizes", {})}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match=re.escape(sentence)):
        export(Order(str(tmp_path), name="vit", out=tmp_path / "models"))
    assert not (tmp_path / "models" / "vit").exists()


def test_systems_are_known_without_what_their_data_need() -> None:
    """Whoever exports a trained system has not the libraries that trained it."""
    program = (
        "import sys; sys.modules |= dict.fromkeys(['gymnasium', 'sklearn', 'scipy']); "
        "from export.zoo.registry import systems; print(len(systems()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == (str(len(SYSTEMS)), 0), done.stderr


def test_the_readme_lists_every_system() -> None:
    """`python -m export.zoo.listing` writes the table."""
    assert readme.part("zoo") == table()
